//! Suggestions for names that were mistyped.

/// Longest name that is compared, in bytes: the comparison takes time by the square of the length.
const LONGEST: usize = 64;

/// Known name that was probably meant by `typed`; `None` if none is near.
///
/// A third of the letters may differ (Damerau-Levenshtein distance, upper case as lower case, `-` as `_`), at least one. A name that
/// contains the other, from three letters on, comes after those.
///
/// ```
/// let verbs = ["run", "runs", "train"];
/// assert_eq!(bessemer_units::nearest("rnu", verbs), Some("run"));
/// assert_eq!(bessemer_units::nearest("bench", verbs), None);
/// ```
pub fn nearest<'n>(typed: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    if typed.is_empty() || typed.len() > LONGEST {
        return None;
    }
    let plain = |name: &str| name.to_lowercase().replace('-', "_");
    let typed = plain(typed);
    let scored = names.into_iter().filter(|name| name.len() <= LONGEST).filter_map(|original| {
        let name = plain(original);
        let distance = strsim::damerau_levenshtein(&typed, &name);
        let longest = typed.chars().count().max(name.chars().count());
        let close = distance <= 1.max(longest / 3) && distance < longest;
        let contained =
            typed.len() >= 3 && name.len() >= 3 && (name.contains(&typed) || typed.contains(&name));
        (close || contained).then_some((if close { distance } else { longest / 3 + 1 }, original))
    });
    scored.min().map(|(_, name)| name)
}

/// ` (did you mean "run"?)` for the nearest of the names, or an empty string.
pub fn did_you_mean<'n>(typed: &str, names: impl IntoIterator<Item = &'n str>) -> String {
    nearest(typed, names).map_or_else(String::new, |name| format!(" (did you mean {name:?}?)"))
}

/// An error message of serde with [`did_you_mean`] after the unknown field or variant that it names; any other message as it is.
///
/// ```
/// let message = "unknown field `lnik`, expected `link` or `ports`";
/// let wanted = "unknown field `lnik` (did you mean \"link\"?), expected `link` or `ports`";
/// assert_eq!(bessemer_units::with_suggestion(message), wanted);
/// ```
pub fn with_suggestion(message: &str) -> String {
    let unknown = ["unknown field `", "unknown variant `"];
    let after = unknown.iter().filter_map(|what| Some(message.rfind(what)? + what.len())).max();
    let parts = after.and_then(|after| {
        let (typed, expected) = message[after..].split_once('`')?;
        Some((after + typed.len() + 1, typed, expected.strip_prefix(", expected ")?))
    });
    let Some((end, typed, expected)) = parts else { return message.to_owned() };
    let names = expected.lines().next().unwrap_or_default().split('`').skip(1).step_by(2);
    format!("{}{}{}", &message[..end], did_you_mean(typed, names), &message[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_suggested_only_if_it_is_near() {
        let names = ["lr", "betas", "weight_decay", "warmup_steps", "seq_len", "batch_tokens"];
        for (typed, wanted) in [
            ("lrr", Some("lr")),
            ("beta", Some("betas")),
            ("weigth_decay", Some("weight_decay")),
            ("weight-decay", Some("weight_decay")),
            ("warmup", Some("warmup_steps")),
            ("seqlen", Some("seq_len")),
            ("SEQ_LEN", Some("seq_len")),
            ("tokens", Some("batch_tokens")),
            ("zzzzzz", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(nearest(typed, names), wanted, "{typed}");
        }
        assert_eq!(nearest(&"x".repeat(1 << 20), names), None);
        let long = "lr".repeat(1 << 20);
        assert_eq!(nearest("lr", [&*long]), None);
    }

    #[test]
    fn messages_of_serde_get_a_suggestion_and_others_stay() {
        for (message, wanted) in [
            (
                "at line 3\n  | unknown field `x`\nunknown field `nodes`, expected one of `name`, `node`, `link`",
                "at line 3\n  | unknown field `x`\nunknown field `nodes` (did you mean \"node\"?), expected one of `name`, `node`, `link`",
            ),
            (
                "unknown variant `rign`, expected `ring` or `table`\nin `all_reduce`",
                "unknown variant `rign` (did you mean \"ring\"?), expected `ring` or `table`\nin `all_reduce`",
            ),
            ("unknown field `zzz`, expected `name`", "unknown field `zzz`, expected `name`"),
            ("unknown field `a`, there are no fields", "unknown field `a`, there are no fields"),
            ("unknown field `", "unknown field `"),
            ("missing field `name`", "missing field `name`"),
            ("", ""),
        ] {
            assert_eq!(with_suggestion(message), wanted);
        }
    }

    #[test]
    fn the_suggestion_is_in_brackets_or_empty() {
        assert_eq!(did_you_mean("trian", ["train", "run"]), " (did you mean \"train\"?)");
        assert_eq!(did_you_mean("zzz", ["train", "run"]), "");
    }
}
