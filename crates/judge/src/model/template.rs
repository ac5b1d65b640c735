//! Templates: how a model is asked for a judgement, and how its verdict is read.
//!
//! ```toml
//! name = "mine"
//! kind = "pairs"                 # or "scale"
//! prompt = "…"                   # Jinja, see [`JudgeTemplate::prompt`]
//! [generate]                     # verdicts in text that the model writes
//! suffix = "…"                   # stands behind the prompt; Jinja
//! max_tokens = 512
//! stop = ["\n"]
//! first = '\[\[A\]\]'            # patterns; the last one that occurs counts
//! second = '\[\[B\]\]'
//! tie = '\[\[C\]\]'              # may be left out
//! # point = '\[\[(\d+)\]\]'      # of a scale, instead of these three: the group holds the point
//! [likelihood]                   # verdicts by which continuation is the most probable
//! suffix = "…"
//! first = " A"
//! second = " B"
//! # tie = " C"
//! # point = " {{ point }}"       # of a scale: Jinja with `point` (1, 2, …) and `label`
//! ```

use crate::JudgeError;
use crate::assign::TaskKey;
use crate::study::{Question, Study};
use bessemer_jinja::{BoundedTemplate, WhiteSpace, environment};
use minijinja::UndefinedBehavior;
use minijinja::value::{Serde, Value as Jinja};
use regex::Regex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Longest file of a template, bytes.
const LONGEST: usize = 1 << 20;
/// Tokens that a verdict takes if a template does not say.
const MAX_TOKENS: u64 = 512;

/// Templates that come with the program: their names and files.
pub const SHIPPED: [(&str, &str); 4] = [
    ("pair", include_str!("templates/pair.toml")),
    ("pair-brief", include_str!("templates/pair-brief.toml")),
    ("scale", include_str!("templates/scale.toml")),
    ("scale-brief", include_str!("templates/scale-brief.toml")),
];

/// How a verdict is obtained from a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// The model writes a text that ends with the verdict.
    Generate,
    /// The verdict is the most probable of the continuations that stand for one.
    Likelihood,
}

impl Method {
    /// The name in files.
    pub fn name(self) -> &'static str {
        match self {
            Method::Generate => "generate",
            Method::Likelihood => "likelihood",
        }
    }
}

/// Kind of the question that a template asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum TemplateKind {
    Pairs,
    Scale,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    name: String,
    kind: TemplateKind,
    prompt: String,
    generate: Option<Generated>,
    likelihood: Option<Likelihood>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Generated {
    #[serde(default)]
    suffix: String,
    #[serde(default = "max_tokens")]
    max_tokens: u64,
    #[serde(default)]
    stop: Vec<String>,
    first: Option<String>,
    second: Option<String>,
    tie: Option<String>,
    point: Option<String>,
}

fn max_tokens() -> u64 {
    MAX_TOKENS
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Likelihood {
    #[serde(default)]
    suffix: String,
    first: Option<String>,
    second: Option<String>,
    tie: Option<String>,
    point: Option<String>,
}

/// A verdict as the texts were shown.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Meaning {
    /// 1 if the text that stands first is better, 0 the other, 0.5 neither.
    Side(f64),
    /// The pattern's group holds the point.
    Point,
}

/// A template, checked.
#[derive(Debug)]
pub struct JudgeTemplate {
    text: String,
    fields: Fields,
    patterns: Vec<(Meaning, Regex)>,
    /// The parts of the prompt, by name.
    parts: BTreeMap<&'static str, BoundedTemplate>,
}

impl JudgeTemplate {
    /// A template that comes with the program.
    ///
    /// # Errors
    /// [`JudgeError::Template`] for another name.
    pub fn shipped(name: &str) -> Result<JudgeTemplate, JudgeError> {
        match SHIPPED.iter().find(|(known, _)| *known == name) {
            Some((_, text)) => JudgeTemplate::parse(name, text),
            None => Err(JudgeError::Template {
                place: name.into(),
                what: format!(
                    "no such template{}; wanted a file that ends with .toml, or {}",
                    bessemer_units::did_you_mean(name, SHIPPED.iter().map(|(name, _)| *name)),
                    SHIPPED.map(|(name, _)| name).join(", ")
                ),
            }),
        }
    }

    /// Reads a template; `place` is the file's name.
    ///
    /// # Errors
    /// [`JudgeError::Template`]: no TOML, an unknown or missing key, a pattern or Jinja that is none.
    pub fn parse(place: &str, text: &str) -> Result<JudgeTemplate, JudgeError> {
        let wrong = |what: String| JudgeError::Template { place: place.into(), what };
        if text.len() > LONGEST {
            return Err(wrong(format!("wanted at most {LONGEST} bytes, found {}", text.len())));
        }
        let fields: Fields =
            toml::from_str(text).map_err(|e| wrong(bessemer_units::with_suggestion(&e.to_string())))?;
        if fields.generate.is_none() && fields.likelihood.is_none() {
            return Err(wrong("wanted a table [generate], [likelihood] or both".into()));
        }
        let patterns = fields.patterns().map_err(wrong)?;
        fields.check_continuations().map_err(wrong)?;
        let parts = parts(&fields).map_err(wrong)?;
        Ok(JudgeTemplate { text: text.to_owned(), fields, patterns, parts })
    }

    /// The template's name.
    pub fn name(&self) -> &str {
        &self.fields.name
    }

    /// The template's TOML.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Checks that the template asks a study's question by a method.
    ///
    /// # Errors
    /// [`JudgeError::Template`] says which kind or table is missing.
    pub fn check(&self, study: &Study, method: Method) -> Result<(), JudgeError> {
        let wrong = |what: String| Err(JudgeError::Template { place: self.name().into(), what });
        let (wanted, found) = match (&study.question, self.fields.kind) {
            (Question::Pairs { .. }, TemplateKind::Scale) => ("pairs", "scale"),
            (Question::Scale { .. }, TemplateKind::Pairs) => ("scale", "pairs"),
            _ => ("", ""),
        };
        if wanted != found {
            return wrong(format!("wanted kind = \"{wanted}\", the kind of this study, found \"{found}\""));
        }
        let has = match method {
            Method::Generate => self.fields.generate.is_some(),
            Method::Likelihood => self.fields.likelihood.is_some(),
        };
        if has {
            Ok(())
        } else {
            wrong(format!("wanted a table [{}], which the method needs", method.name()))
        }
    }

    /// The prompt for a task. Its Jinja has `question`, `points` (names of a scale's points), and `turns`: for each turn of a dialogue, or once, `user`
    /// (may be empty), `reference` (may be empty), and `first` and `second`, or `answer` on a scale. `turned`: the second text stands first.
    ///
    /// # Errors
    /// [`JudgeError::Template`] with Jinja's word.
    pub fn prompt(
        &self,
        study: &Study,
        key: TaskKey,
        turned: bool,
        method: Method,
    ) -> Result<String, JudgeError> {
        let context = context(study, key, turned);
        let suffix = match method {
            Method::Generate => "generate",
            Method::Likelihood => "likelihood",
        };
        Ok(self.render("prompt", &context)? + &self.render(suffix, &context)?)
    }

    /// Most tokens of a generated verdict, and strings that end it.
    pub fn generation(&self) -> (u64, &[String]) {
        self.fields.generate.as_ref().map_or((MAX_TOKENS, &[]), |g| (g.max_tokens, &g.stop))
    }

    /// Continuations whose probabilities are compared: first, second, tie; or one for each point.
    ///
    /// # Errors
    /// [`JudgeError::Template`] with Jinja's word, or for two that are equal.
    pub fn continuations(&self, study: &Study) -> Result<Vec<String>, JudgeError> {
        let Some(likelihood) = &self.fields.likelihood else { return Ok(Vec::new()) };
        let all = match &study.question {
            Question::Pairs { .. } => [&likelihood.first, &likelihood.second, &likelihood.tie]
                .into_iter()
                .flatten()
                .cloned()
                .collect(),
            Question::Scale { labels, .. } => {
                let of = |(i, label)| self.render("point", &json!({ "point": i + 1, "label": label }));
                labels.iter().enumerate().map(of).collect::<Result<Vec<String>, _>>()?
            }
        };
        match all.iter().enumerate().find(|(i, one)| one.is_empty() || all[..*i].contains(one)) {
            Some((_, one)) => Err(JudgeError::Template {
                place: self.name().into(),
                what: format!(
                    "likelihood: wanted continuations that differ and are not empty, found {one:?}"
                ),
            }),
            None => Ok(all),
        }
    }

    /// The verdict in a text that a model wrote: what the last match says, 1 if the text that stood first is better, 0 the other, 0.5 neither; or the
    /// point of the scale. None if no pattern occurs, two end at the last place, or the scale has no such point.
    pub fn verdict(&self, study: &Study, answer: &str) -> Option<f64> {
        let points = points(study).len();
        let mut last: Option<(usize, f64)> = None;
        let mut ambiguous = false;
        for (meaning, pattern) in &self.patterns {
            let Some(found) = pattern.captures_iter(answer).last() else { continue };
            let end = found.get(0).map_or(0, |whole| whole.end());
            let choice = match meaning {
                Meaning::Side(side) => *side,
                Meaning::Point => {
                    let point: usize = found.get(1)?.as_str().parse().ok()?;
                    (1..=points).contains(&point).then_some(point as f64)?
                }
            };
            ambiguous = last.is_some_and(|(before, _)| before == end);
            if last.is_none_or(|(before, _)| end >= before) {
                last = Some((end, choice));
            }
        }
        last.filter(|_| !ambiguous).map(|(_, choice)| choice)
    }

    /// The verdict of log-likelihoods of the continuations: of a pair the most probable one (0.5 if two are equally so), of a scale the mean of the points,
    /// weighted by their probabilities (Liu et al. 2023, G-Eval).
    pub fn most_probable(&self, study: &Study, log_likelihoods: &[f64]) -> Option<f64> {
        let best = log_likelihoods.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if !best.is_finite() || log_likelihoods.iter().any(|one| one.is_nan()) {
            return None;
        }
        match &study.question {
            Question::Pairs { .. } => {
                let is_best = |i: usize| log_likelihoods.get(i) == Some(&best);
                Some(match (is_best(0), is_best(1), is_best(2)) {
                    (true, false, false) => 1.0,
                    (false, true, false) => 0.0,
                    _ => 0.5,
                })
            }
            Question::Scale { .. } => {
                let weight = |ll: &f64| (ll - best).exp();
                let sum: f64 = log_likelihoods.iter().map(weight).sum();
                let points = log_likelihoods.iter().zip(1u32..);
                Some(points.map(|(ll, point)| weight(ll) * f64::from(point)).sum::<f64>() / sum)
            }
        }
    }

    fn render(&self, part: &str, context: &Value) -> Result<String, JudgeError> {
        let Some(template) = self.parts.get(part) else { return Ok(String::new()) };
        template
            .render(Jinja::from(Serde(context)))
            .map_err(|e| JudgeError::Template { place: self.name().into(), what: format!("{part}: {e:#}") })
    }
}

impl Fields {
    fn patterns(&self) -> Result<Vec<(Meaning, Regex)>, String> {
        let Some(generate) = &self.generate else { return Ok(Vec::new()) };
        let wanted = match self.kind {
            TemplateKind::Pairs => vec![
                (Meaning::Side(1.0), "first", &generate.first),
                (Meaning::Side(0.0), "second", &generate.second),
                (Meaning::Side(0.5), "tie", &generate.tie),
            ],
            TemplateKind::Scale => vec![(Meaning::Point, "point", &generate.point)],
        };
        let mut patterns = Vec::new();
        for (meaning, key, pattern) in wanted {
            let Some(pattern) = pattern else {
                if key == "tie" {
                    continue;
                }
                return Err(format!("generate.{key}: wanted a pattern"));
            };
            let pattern = Regex::new(pattern).map_err(|e| format!("generate.{key}: {e}"))?;
            if meaning == Meaning::Point && pattern.captures_len() != 2 {
                return Err("generate.point: wanted a pattern with one group, the point".into());
            }
            patterns.push((meaning, pattern));
        }
        Ok(patterns)
    }

    fn check_continuations(&self) -> Result<(), String> {
        let Some(likelihood) = &self.likelihood else { return Ok(()) };
        let wanted = match self.kind {
            TemplateKind::Pairs => vec![("first", &likelihood.first), ("second", &likelihood.second)],
            TemplateKind::Scale => vec![("point", &likelihood.point)],
        };
        match wanted.iter().find(|(_, continuation)| continuation.is_none()) {
            Some((key, _)) => Err(format!("likelihood.{key}: wanted a continuation")),
            None => Ok(()),
        }
    }
}

/// The parts that a template has. Of the others the text is empty.
fn parts(fields: &Fields) -> Result<BTreeMap<&'static str, BoundedTemplate>, String> {
    let sources = [
        ("prompt", Some(&fields.prompt)),
        ("generate", fields.generate.as_ref().map(|g| &g.suffix)),
        ("likelihood", fields.likelihood.as_ref().map(|l| &l.suffix)),
        ("point", fields.likelihood.as_ref().and_then(|l| l.point.as_ref())),
    ];
    let mut parts = BTreeMap::new();
    for (name, source) in sources {
        let Some(source) = source else { continue };
        let mut environment = environment(WhiteSpace { trim_statements: true, keep_last_line_break: true });
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        let part = BoundedTemplate::new(environment, source).map_err(|e| format!("{name}: {e:#}"))?;
        parts.insert(name, part);
    }
    Ok(parts)
}

fn points(study: &Study) -> &[String] {
    match &study.question {
        Question::Scale { labels, .. } => labels,
        Question::Pairs { .. } => &[],
    }
}

fn context(study: &Study, key: TaskKey, turned: bool) -> Value {
    let item = &study.items[key.item];
    let single = item.turns.is_empty();
    let user = if single { std::slice::from_ref(&item.prompt) } else { &item.turns[..] };
    let said = |text: usize, turn: usize| -> &str {
        let text = &item.texts[text];
        if single { &text.text } else { text.turns.get(turn).map_or("", String::as_str) }
    };
    let turns: Vec<Value> = user
        .iter()
        .enumerate()
        .map(|(turn, user)| {
            let reference = item.references.get(turn).map_or("", String::as_str);
            let mut of = json!({ "user": user, "reference": reference });
            match key.second {
                None => of["answer"] = json!(said(key.first, turn)),
                Some(second) => {
                    let (first, second) = if turned { (second, key.first) } else { (key.first, second) };
                    of["first"] = json!(said(first, turn));
                    of["second"] = json!(said(second, turn));
                }
            }
            of
        })
        .collect();
    json!({ "question": study.question.text(), "points": points(study), "turns": turns })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::assign::tests::study;

    fn scale(points: usize) -> Study {
        let labels = (1..=points).map(|i| format!("grade {i}")).collect();
        let mut study = study(2, &["a"], 1);
        study.question = Question::Scale { text: "How good?".into(), labels };
        study
    }

    #[test]
    fn shipped_templates_ask_about_both_orders_and_every_turn() {
        let mut study = study(1, &["a", "b"], 1);
        let key = TaskKey { item: 0, first: 0, second: Some(1) };
        for (name, _) in SHIPPED {
            let template = JudgeTemplate::shipped(name).unwrap();
            assert_eq!(template.name(), name);
            if name.starts_with("scale") {
                let study = scale(3);
                let key = TaskKey { item: 1, first: 0, second: None };
                for method in [Method::Generate, Method::Likelihood] {
                    template.check(&study, method).unwrap();
                    assert!(template.prompt(&study, key, false, method).unwrap().contains("a 1\n"));
                }
                assert_eq!(template.continuations(&study).unwrap().len(), 3);
                continue;
            }
            for method in [Method::Generate, Method::Likelihood] {
                template.check(&study, method).unwrap();
                let places = |turned| {
                    let prompt = template.prompt(&study, key, turned, method).unwrap();
                    assert!(prompt.contains("prompt 0\n"), "{prompt}");
                    (prompt.find("a 0").unwrap(), prompt.find("b 0").unwrap())
                };
                let ((a, b), (turned_a, turned_b)) = (places(false), places(true));
                assert!(a < b && turned_b < turned_a, "{name}");
            }
            assert_eq!(template.continuations(&study).unwrap(), [" A", " B"]);
        }
        let line = r#"{"prompt":["ask {{ x }}","and then"],"reference":["r1","r2"],"texts":{"a":["one","two"],"b":["uno","due"]}}"#;
        study.items = Study::read_items("x", line).unwrap();
        let prompt = JudgeTemplate::shipped("pair-brief").unwrap();
        assert_eq!(
            prompt.prompt(&study, key, true, Method::Likelihood).unwrap(),
            "Question: ask {{ x }}\nRight answer: r1\nA: uno\nB: one\nQuestion: and then\nRight answer: r2\nA: due\nB: two\n\
             The better one is"
        );
    }

    /// Verdicts in the form of MT-Bench's judges (lm-sys/FastChat, fastchat/llm_judge/common.py: `[[A]]`, `[[B]]`, `[[C]]`, `[[rating]]`).
    #[test]
    fn the_last_mark_counts_and_text_without_one_is_no_verdict() {
        let (pairs, points) = (study(1, &["a", "b"], 1), scale(10));
        let pair = JudgeTemplate::shipped("pair").unwrap();
        for (answer, wanted) in [
            ("A is longer, B is right. [[B]]", Some(0.0)),
            ("[[A]]", Some(1.0)),
            ("Both fail.\nVerdict: [[C]].", Some(0.5)),
            ("I would not say [[A]]; on balance: [[B]]", Some(0.0)),
            ("[[B]]? No: [[A]]. Finally [[A]]", Some(1.0)),
            ("Assistant A is better.", None),
            ("[A]", None),
            ("", None),
        ] {
            assert_eq!(pair.verdict(&pairs, answer), wanted, "{answer:?}");
        }
        let scale = JudgeTemplate::shipped("scale").unwrap();
        for (answer, wanted) in [
            ("Rating: [[7]]", Some(7.0)),
            ("[[3]] at first, [[10]] in the end", Some(10.0)),
            ("[[0]]", None),
            ("[[11]]", None),
            ("[[99999999999999999999999]]", None),
            ("7", None),
        ] {
            assert_eq!(scale.verdict(&points, answer), wanted, "{answer:?}");
        }
    }

    #[test]
    fn likelihoods_choose_the_most_probable_and_weigh_points() {
        let pair = JudgeTemplate::shipped("pair").unwrap();
        let pairs = study(1, &["a", "b"], 1);
        for (ll, wanted) in [
            (vec![-1.0, -2.0], Some(1.0)),
            (vec![-3.0, -2.0], Some(0.0)),
            (vec![-2.0, -2.0], Some(0.5)),
            (vec![-2.0, -3.0, -1.0], Some(0.5)),
            (vec![f64::NAN, -1.0], None),
            (vec![f64::NEG_INFINITY; 2], None),
        ] {
            assert_eq!(pair.most_probable(&pairs, &ll), wanted, "{ll:?}");
        }
        let scale_template = JudgeTemplate::shipped("scale").unwrap();
        // 1/8 * 1 + 1/8 * 2 + 3/4 * 3, however small all three are.
        let ll = [0.125f64, 0.125, 0.75].map(|p| p.ln() - 900.0);
        let mean = scale_template.most_probable(&scale(3), &ll).unwrap();
        assert!((mean - 2.625).abs() < 1e-12, "{mean}");
    }

    #[test]
    fn templates_that_cannot_serve_say_why() {
        let of = |text: &str| JudgeTemplate::parse("t.toml", text).unwrap_err().to_string();
        let head = "name = \"t\"\nkind = \"pairs\"\nprompt = \"{{ question }}\"\n";
        for (text, parts) in [
            ("name = 1".to_owned(), vec!["t.toml", "line 1"]),
            (head.into(), vec!["[generate], [likelihood] or both"]),
            (format!("{head}colour = 1\n[generate]"), vec!["unknown field `colour`"]),
            (format!("{head}[generate]\nfrist = 'A'\n"), vec!["`frist` (did you mean \"first\"?)", "line 5"]),
            (format!("{head}[generate]\nfirst = 'A'\n"), vec!["generate.second: wanted a pattern"]),
            (format!("{head}[generate]\nfirst = '('\nsecond = 'B'\n"), vec!["generate.first"]),
            (format!("{head}[likelihood]\nfirst = 'A'\n"), vec!["likelihood.second: wanted a continuation"]),
            (head.replace("}}", "") + "[likelihood]\nfirst = 'A'\nsecond = 'B'", vec!["prompt:"]),
            (
                head.replace("pairs", "scale") + "[generate]\npoint = '\\d'\n",
                vec!["generate.point: wanted a pattern with one group"],
            ),
        ] {
            let error = of(&text);
            parts.iter().for_each(|part| assert!(error.contains(part), "{part}: {error}"));
        }
        let unknown = head.replace("question", "answer") + "[likelihood]\nfirst = 'A'\nsecond = 'A'\n";
        let template = JudgeTemplate::parse("t.toml", &unknown).unwrap();
        let (pairs, key) = (study(1, &["a", "b"], 1), TaskKey { item: 0, first: 0, second: Some(1) });
        let error = template.prompt(&pairs, key, false, Method::Likelihood).unwrap_err().to_string();
        assert!(error.contains("prompt: undefined value"), "{error}");
        let error = template.continuations(&pairs).unwrap_err().to_string();
        assert!(error.contains("found \"A\""), "{error}");
        let error = template.check(&pairs, Method::Generate).unwrap_err().to_string();
        assert!(error.contains("wanted a table [generate]"), "{error}");
        let error = template.check(&scale(2), Method::Likelihood).unwrap_err().to_string();
        assert!(error.contains("wanted kind = \"scale\""), "{error}");
        let error = JudgeTemplate::shipped("pair-breif").unwrap_err().to_string();
        assert!(error.contains("(did you mean \"pair-brief\"?)"), "{error}");
        assert!(error.contains("pair, pair-brief, scale, scale-brief"), "{error}");
    }
}
