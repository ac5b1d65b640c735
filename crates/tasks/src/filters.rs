//! Filters between a generated text and its metrics, as the harness has them.

use regex::Regex;
use serde_json::{Map, Value};

/// A step of a pipeline over the answers to one document.
#[derive(Debug, Clone)]
pub(crate) enum Filter {
    /// What a pattern finds: the match number `select` (from the end if negative), or `fallback`.
    Find { pattern: Regex, select: i64, fallback: String },
    /// Without blanks at both ends.
    Strip,
    /// In lower case.
    Lower,
    /// In upper case.
    Upper,
    /// A text for a text.
    Map { texts: Map<String, Value>, otherwise: Option<String> },
    /// The first answer alone.
    First,
    /// The first answers.
    FirstSome(usize),
    /// The answer that occurs most often; the earliest among equals.
    Majority,
}

/// A pattern of Python's `re`.
pub(crate) fn pattern(text: &str) -> Result<Regex, String> {
    Regex::new(text).map_err(|e| {
        format!("the pattern {text:?} cannot be used (patterns that look ahead or behind, or back, are not supported): {e}")
    })
}

impl Filter {
    /// The pipelines of `filter_list`; without one, the first answer as it is.
    pub(crate) fn pipelines(list: Option<Value>) -> Result<Vec<(String, Vec<Filter>)>, String> {
        let Some(list) = list else { return Ok(vec![("none".into(), vec![Filter::First])]) };
        let pipelines = list.as_array().ok_or_else(|| format!("filter_list: wanted a list, found {list}"))?;
        let pipeline = |pipeline: &Value| {
            let name =
                pipeline["name"].as_str().ok_or("filter_list: wanted a name of each pipeline")?.to_owned();
            let steps = pipeline["filter"].as_array().ok_or("filter_list: wanted a list of filters")?;
            let filters: Vec<Filter> = steps.iter().map(Filter::of).collect::<Result<_, _>>()?;
            match filters.iter().any(|filter| matches!(filter, Filter::First)) {
                true => Ok((name, filters)),
                false => Err(format!("filter_list: wanted take_first at the end of pipeline {name}")),
            }
        };
        pipelines.iter().map(pipeline).collect()
    }

    fn of(step: &Value) -> Result<Filter, String> {
        let name = step["function"].as_str().ok_or("filter_list: wanted a function of each filter")?;
        let text = |key: &str| step[key].as_str().map(str::to_owned);
        Ok(match name {
            "regex" => Filter::Find {
                pattern: pattern(&text("regex_pattern").unwrap_or_else(|| r"#### (\-?[0-9\.\,]+)".into()))?,
                select: step["group_select"].as_i64().unwrap_or(0),
                fallback: text("fallback").unwrap_or_else(|| "[invalid]".into()),
            },
            "remove_whitespace" => Filter::Strip,
            "lowercase" => Filter::Lower,
            "uppercase" => Filter::Upper,
            "map" => Filter::Map {
                texts: step["mapping_dict"].as_object().cloned().unwrap_or_default(),
                otherwise: text("default_value"),
            },
            "take_first" => Filter::First,
            "take_first_k" => {
                Filter::FirstSome(step["k"].as_u64().ok_or("filter take_first_k: wanted k")? as usize)
            }
            "majority_vote" => Filter::Majority,
            other => {
                return Err(format!(
                    "filter {other}: wanted regex, remove_whitespace, lowercase, uppercase, map, take_first, take_first_k or majority_vote"
                ));
            }
        })
    }

    /// The answers after this step.
    fn apply(&self, mut answers: Vec<String>) -> Vec<String> {
        let each = |answers: Vec<String>, f: &dyn Fn(String) -> String| answers.into_iter().map(f).collect();
        match self {
            Filter::Find { pattern, select, fallback } => {
                each(answers, &|text| find(pattern, &text, *select).unwrap_or_else(|| fallback.clone()))
            }
            Filter::Strip => each(answers, &|text| text.trim().to_owned()),
            Filter::Lower => each(answers, &|text| text.to_lowercase()),
            Filter::Upper => each(answers, &|text| text.to_uppercase()),
            Filter::Map { texts, otherwise } => each(answers, &|text| match texts.get(&text) {
                Some(found) => crate::python::display(found),
                None => otherwise.clone().unwrap_or_else(|| "None".into()),
            }),
            Filter::First => {
                answers.truncate(1);
                answers
            }
            Filter::FirstSome(k) => {
                answers.truncate(*k);
                answers
            }
            Filter::Majority => {
                let count = |text: &String| answers.iter().filter(|other| *other == text).count();
                // The first among those that occur most often.
                let best = answers.iter().rev().max_by_key(|text| count(text)).cloned();
                best.into_iter().collect()
            }
        }
    }
}

/// The first answer after all steps of a pipeline.
pub(crate) fn filtered(filters: &[Filter], answers: &[String]) -> String {
    let end = filters.iter().fold(answers.to_vec(), |answers, filter| filter.apply(answers));
    end.into_iter().next().unwrap_or_default()
}

/// Match number `select` of `re.findall`: the only group's text, the first that is not empty among several groups, or the whole match.
fn find(pattern: &Regex, text: &str, select: i64) -> Option<String> {
    let found: Vec<String> = pattern
        .captures_iter(text)
        .map(|captures| {
            let group = |i: usize| captures.get(i).map(|group| group.as_str()).unwrap_or_default();
            match captures.len() {
                1 => group(0).to_owned(),
                n => (1..n).map(group).find(|text| !text.is_empty()).unwrap_or_default().to_owned(),
            }
        })
        .collect();
    let at =
        if select < 0 { found.len().checked_sub(select.unsigned_abs() as usize)? } else { select as usize };
    let text = found.get(at)?.trim();
    // Several groups, none of which took part: the fallback, as in the harness.
    (pattern.captures_len() <= 2 || !text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The two pipelines of gsm8k.
    #[test]
    fn answers_are_found_as_in_gsm8k() {
        let list = json!([
            {"name": "strict-match", "filter": [{"function": "regex", "regex_pattern": r"#### (\-?[0-9\.\,]+)"}, {"function": "take_first"}]},
            {"name": "flexible-extract", "filter": [
                {"function": "regex", "group_select": -1, "regex_pattern": "(-?[$0-9.,]{2,})|(-?[0-9]+)"}, {"function": "take_first"}]},
        ]);
        let pipelines = Filter::pipelines(Some(list)).unwrap();
        let of = |text: &str| {
            let answers = [text.to_owned(), "x".to_owned()];
            pipelines.iter().map(|(_, filters)| filtered(filters, &answers)).collect::<Vec<_>>()
        };
        assert_eq!(of("so 3 + 4 = 7\n#### 7"), ["7", "7"]);
        assert_eq!(of("it costs $1,200.50 or 8"), ["[invalid]", "8"]);
        assert_eq!(of("none"), ["[invalid]", "[invalid]"]);
        assert_eq!(of("#### -12"), ["-12", "-12"]);
    }

    #[test]
    fn votes_maps_and_mistakes() {
        let vote = json!([{"name": "m", "filter": [{"function": "lowercase"}, {"function": "remove_whitespace"},
            {"function": "take_first_k", "k": 4}, {"function": "majority_vote"}, {"function": "take_first"}]}]);
        let pipelines = Filter::pipelines(Some(vote)).unwrap();
        let answers: Vec<String> = ["b", "A ", "B", "a", "c", "c", "c"].map(str::to_owned).into();
        assert_eq!(filtered(&pipelines[0].1, &answers), "b");
        let map = Filter::of(&json!({"function": "map", "mapping_dict": {"A": "1"}, "default_value": "?"}))
            .unwrap();
        assert_eq!(map.apply(vec!["A".into(), "B".into()]), ["1", "?"]);
        for wrong in [
            json!(3),
            json!([{"filter": []}]),
            json!([{"name": "x", "filter": [{"function": "regex"}]}]),
            json!([{"name": "x", "filter": [{"function": "regex", "regex_pattern": "(?=a)"}]}]),
            json!([{"name": "x", "filter": [{"function": "custom"}]}]),
        ] {
            assert!(Filter::pipelines(Some(wrong)).is_err());
        }
    }
}
