//! Small tasks that are generated here, the same each time: every run can show them without a download. They say how a model stands among models of
//! its size; they are no benchmark.
//!
//! | name | question | chance gives |
//! |---|---|---|
//! | `logic` | does a statement follow from an order or from a syllogism: yes or no | acc 0.5 |
//! | `translation` | numbers up to 99, days and months between English, German, French and Spanish; four choices | acc 0.25 |
//! | `inference` | is a hypothesis true, false or neither, given a premise | acc 0.333 |
//! | `questions` | who has what in a text of five sentences; four choices | acc 0.25 |
//! | `code` | what a Python program prints, and how an expression ends; four choices | acc 0.25 |
//! | `grammar` | which of two sentences is grammatical: agreement in number, pronouns, determiners | acc 0.5 |

use crate::data::Document;
use crate::formats::fields;
use bessemer_mersenne::PythonRandom as Random;
use bessemer_perturb::cardinal;
use serde_json::{Map, Value, json};

/// Names of the families.
pub const NAMES: [&str; 6] = ["logic", "translation", "inference", "questions", "code", "grammar"];

/// Documents of each family.
const DOCUMENTS: usize = 200;

const PEOPLE: [&str; 12] =
    ["Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry", "Iris", "Jack", "Laura", "Martin"];

/// The task of a family and its documents.
pub(crate) fn family(name: &str) -> Option<(Map<String, Value>, Vec<Document>)> {
    let (text, document): (&str, fn(usize, &mut Random) -> Value) = match name {
        "logic" => (
            "\"{{premises}}\\nQuestion: {{question}} Yes or no?\\nAnswer:\"\ndoc_to_choice: [yes_, no_]",
            logic,
        ),
        "translation" => ("\"{{from}}: {{text}}\\n{{to}}:\"\ndoc_to_choice: choices", translation),
        "inference" => (
            "\"{{premise}}\\nQuestion: {{hypothesis}} True, False or Neither?\\nAnswer:\"\ndoc_to_choice: [\"True\", \"False\", \"Neither\"]",
            inference,
        ),
        "questions" => ("\"{{text}}\\nQuestion: {{question}}\\nAnswer:\"\ndoc_to_choice: choices", questions),
        "code" => ("\"{{program}}\"\ntarget_delimiter: \"\"\ndoc_to_choice: choices", code),
        "grammar" => ("\"\"\ndoc_to_choice: \"{{[sentence_good, sentence_bad]}}\"", grammar),
        _ => return None,
    };
    let text = text.replace("yes_", "\"yes\"").replace("no_", "\"no\"");
    let metrics = if name == "grammar" { "[{metric: acc}]" } else { "[{metric: acc}, {metric: acc_norm}]" };
    let target = if name == "grammar" { "0" } else { "label" };
    let map = fields(&format!(
        "task: {name}\noutput_type: multiple_choice\ntest_split: test\ndoc_to_text: {text}\ndoc_to_target: {target}\nmetric_list: {metrics}\nmetadata: {{version: 1}}\n"
    ));
    let mut random = Random::new(20_261_126);
    let documents = (0..DOCUMENTS).map(|i| match document(i, &mut random) {
        Value::Object(map) => map,
        other => unreachable!("a document of a family: {other}"),
    });
    Some((map, documents.collect()))
}

fn pick<'a>(random: &mut Random, list: &[&'a str]) -> &'a str {
    list[random.below(list.len())]
}

fn some<'a>(random: &mut Random, list: &[&'a str], n: usize) -> Vec<&'a str> {
    random.sample(list.len(), n).into_iter().map(|i| list[i]).collect()
}

/// Four choices, the right one among them at a random place.
fn four(random: &mut Random, right: String, wrong: impl IntoIterator<Item = String>) -> (Vec<String>, usize) {
    let mut choices: Vec<String> = Vec::new();
    for choice in wrong {
        if choices.len() < 3 && choice != right && !choices.contains(&choice) {
            choices.push(choice);
        }
    }
    let label = random.below(choices.len() + 1);
    choices.insert(label, right);
    (choices, label)
}

fn logic(number: usize, random: &mut Random) -> Value {
    let yes = number.is_multiple_of(2);
    let label = usize::from(!yes);
    match number / 2 % 3 {
        0 => {
            // An order: each stands before the next.
            let relation = pick(random, &["taller", "older", "faster", "stronger"]);
            let length = 3 + random.below(2);
            let people = some(random, &PEOPLE, length);
            let mut facts: Vec<String> = people
                .windows(2)
                .map(|pair| format!("{} is {relation} than {}.", pair[0], pair[1]))
                .collect();
            if random.below(2) == 1 {
                facts.reverse();
            }
            let (a, b) = (people[0], people[length - 1]);
            let (a, b) = if yes { (a, b) } else { (b, a) };
            json!({"premises": facts.join(" "), "question": format!("Is {a} {relation} than {b}?"), "label": label})
        }
        1 => {
            let kinds = some(random, &["wugs", "daxes", "feps", "blickets", "zorps", "tomas", "gazzers"], 3);
            let [a, b, c] = [kinds[0], kinds[1], kinds[2]];
            let quantity = if yes { "All" } else { "No" };
            json!({"premises": format!("{quantity} {b} are {c}. All {a} are {b}."), "question": format!("Are {a} {c}?"), "label": label})
        }
        _ => {
            let (name, kinds) = (
                pick(random, &PEOPLE),
                some(random, &["doctor", "painter", "singer", "farmer", "teacher", "pilot"], 2),
            );
            let quantity = if yes { "Every" } else { "No" };
            json!({
                "premises": format!("{quantity} {} is a {}. {name} is a {}.", kinds[0], kinds[1], kinds[0]),
                "question": format!("Is {name} a {}?", kinds[1]), "label": label,
            })
        }
    }
}

/// A number below 100 in English, German, French and Spanish.
fn number_words(n: usize) -> [String; 4] {
    const GERMAN: [&str; 20] = [
        "null",
        "eins",
        "zwei",
        "drei",
        "vier",
        "fünf",
        "sechs",
        "sieben",
        "acht",
        "neun",
        "zehn",
        "elf",
        "zwölf",
        "dreizehn",
        "vierzehn",
        "fünfzehn",
        "sechzehn",
        "siebzehn",
        "achtzehn",
        "neunzehn",
    ];
    const FRENCH: [&str; 20] = [
        "zéro", "un", "deux", "trois", "quatre", "cinq", "six", "sept", "huit", "neuf", "dix", "onze",
        "douze", "treize", "quatorze", "quinze", "seize", "dix-sept", "dix-huit", "dix-neuf",
    ];
    const SPANISH: [&str; 30] = [
        "cero",
        "uno",
        "dos",
        "tres",
        "cuatro",
        "cinco",
        "seis",
        "siete",
        "ocho",
        "nueve",
        "diez",
        "once",
        "doce",
        "trece",
        "catorce",
        "quince",
        "dieciséis",
        "diecisiete",
        "dieciocho",
        "diecinueve",
        "veinte",
        "veintiuno",
        "veintidós",
        "veintitrés",
        "veinticuatro",
        "veinticinco",
        "veintiséis",
        "veintisiete",
        "veintiocho",
        "veintinueve",
    ];
    const TENS: [[&str; 3]; 8] = [
        ["zwanzig", "vingt", "veinte"],
        ["dreißig", "trente", "treinta"],
        ["vierzig", "quarante", "cuarenta"],
        ["fünfzig", "cinquante", "cincuenta"],
        ["sechzig", "soixante", "sesenta"],
        ["siebzig", "soixante", "setenta"],
        ["achtzig", "quatre-vingt", "ochenta"],
        ["neunzig", "quatre-vingt", "noventa"],
    ];
    let english = cardinal(n as u64);
    if n < 20 {
        return [english, GERMAN[n].to_owned(), FRENCH[n].to_owned(), SPANISH[n].to_owned()];
    }
    let (ten, one) = (n / 10, n % 10);
    let tens = TENS[ten - 2];
    let german = match one {
        0 => tens[0].to_owned(),
        1 => format!("einund{}", tens[0]),
        _ => format!("{}und{}", GERMAN[one], tens[0]),
    };
    // Seventy and ninety count on from sixty and eighty.
    let rest = if ten == 7 || ten == 9 { 10 + one } else { one };
    let french = match (ten, rest) {
        (8, 0) => "quatre-vingts".to_owned(),
        (_, 0) => tens[1].to_owned(),
        (2..=7, 1 | 11) => format!("{} et {}", tens[1], FRENCH[rest]),
        _ => format!("{}-{}", tens[1], FRENCH[rest]),
    };
    let spanish = match (n, one) {
        (20..=29, _) => SPANISH[n].to_owned(),
        (_, 0) => tens[2].to_owned(),
        _ => format!("{} y {}", tens[2], SPANISH[one]),
    };
    [english, german, french, spanish]
}

fn translation(_: usize, random: &mut Random) -> Value {
    const LANGUAGES: [&str; 4] = ["English", "German", "French", "Spanish"];
    const DAYS: [[&str; 4]; 7] = [
        ["Monday", "Montag", "lundi", "lunes"],
        ["Tuesday", "Dienstag", "mardi", "martes"],
        ["Wednesday", "Mittwoch", "mercredi", "miércoles"],
        ["Thursday", "Donnerstag", "jeudi", "jueves"],
        ["Friday", "Freitag", "vendredi", "viernes"],
        ["Saturday", "Samstag", "samedi", "sábado"],
        ["Sunday", "Sonntag", "dimanche", "domingo"],
    ];
    const MONTHS: [[&str; 4]; 12] = [
        ["January", "Januar", "janvier", "enero"],
        ["February", "Februar", "février", "febrero"],
        ["March", "März", "mars", "marzo"],
        ["April", "April", "avril", "abril"],
        ["May", "Mai", "mai", "mayo"],
        ["June", "Juni", "juin", "junio"],
        ["July", "Juli", "juillet", "julio"],
        ["August", "August", "août", "agosto"],
        ["September", "September", "septembre", "septiembre"],
        ["October", "Oktober", "octobre", "octubre"],
        ["November", "November", "novembre", "noviembre"],
        ["December", "Dezember", "décembre", "diciembre"],
    ];
    let languages = random.sample(4, 2);
    let (from, to) = (languages[0], languages[1]);
    let lists: Vec<[String; 4]> = match random.below(4) {
        0 => DAYS.iter().map(|row| row.map(str::to_owned)).collect(),
        1 => MONTHS.iter().map(|row| row.map(str::to_owned)).collect(),
        _ => (0..100).map(number_words).collect(),
    };
    let rows = random.sample(lists.len(), 6);
    let right = lists[rows[0]][to].clone();
    let (choices, label) = four(random, right, rows[1..].iter().map(|&row| lists[row][to].clone()));
    json!({"from": LANGUAGES[from], "to": LANGUAGES[to], "text": lists[rows[0]][from], "choices": choices, "label": label})
}

fn inference(number: usize, random: &mut Random) -> Value {
    let who = pick(random, &["children", "farmers", "students", "musicians", "sailors"]);
    let (doing, other) = match random.below(4) {
        0 => ("playing in the park", "sleeping at home"),
        1 => ("walking along the river", "sitting in a train"),
        2 => ("eating bread in the kitchen", "swimming in a lake"),
        _ => ("reading books in the library", "running through the forest"),
    };
    let count = pick(random, &["Two", "Three", "Four", "Five", "Many"]);
    let premise = format!("{count} {who} are {doing}.");
    let hypothesis = match (number % 3, random.below(2)) {
        (0, 0) => format!("Some {who} are {doing}."),
        (0, _) => format!("At least one person is {doing}."),
        (1, 0) => format!("No {who} are {doing}."),
        (1, _) => format!("All {who} are {other}."),
        (_, 0) => format!("The {who} are {doing} because it is Sunday."),
        (_, _) => format!("The {who} have known each other for years."),
    };
    json!({"premise": premise, "hypothesis": hypothesis, "label": number % 3})
}

fn questions(_: usize, random: &mut Random) -> Value {
    let people = some(random, &PEOPLE, 5);
    let things = some(random, &["bag", "hat", "book", "lamp", "ball", "coat", "cup", "kite"], 5);
    let colours: Vec<&str> =
        (0..5).map(|_| pick(random, &["red", "blue", "green", "yellow", "black", "white"])).collect();
    let verb = pick(random, &["has", "found", "sold", "painted", "lost"]);
    let facts: Vec<String> =
        (0..5).map(|i| format!("{} {verb} a {} {}.", people[i], colours[i], things[i])).collect();
    let asked = random.below(5);
    let others = random.sample(5, 5).into_iter().filter(|&i| i != asked);
    if random.below(2) == 0 {
        let (choices, label) = four(random, people[asked].to_owned(), others.map(|i| people[i].to_owned()));
        return json!({"text": facts.join(" "), "question": format!("Who {verb} a {}?", things[asked]), "choices": choices, "label": label});
    }
    let (choices, label) = four(random, things[asked].to_owned(), others.map(|i| things[i].to_owned()));
    let base = match verb {
        "has" => "have",
        "found" => "find",
        "sold" => "sell",
        "painted" => "paint",
        _ => "lose",
    };
    json!({"text": facts.join(" "), "question": format!("What did {} {base}?", people[asked]), "choices": choices, "label": label})
}

fn code(number: usize, random: &mut Random) -> Value {
    let [a, b, c] = [2 + random.below(8) as i64, 2 + random.below(8) as i64, 1 + random.below(9) as i64];
    let printed = |random: &mut Random, program: String, right: i64| {
        let near = [right + 1, right - 1, right + a, right - b, right + 10, right * 2 + 1];
        let order = random.sample(near.len(), near.len());
        let (choices, label) =
            four(random, format!(" {right}"), order.into_iter().map(|i| format!(" {}", near[i])));
        json!({"program": format!("{program}\n# prints:"), "choices": choices, "label": label})
    };
    match number % 5 {
        0 => printed(random, format!("x = {a}\ny = x * {b}\nprint(y + {c})"), a * b + c),
        1 => {
            printed(random, format!("total = 0\nfor i in range({a}):\n    total += {b}\nprint(total)"), a * b)
        }
        2 => printed(random, format!("items = [{a}, {b}, {c}]\nprint(sum(items))"), a + b + c),
        3 => printed(random, format!("def f(n):\n    return n - {c}\n\nprint(f({a}) + {b})"), a - c + b),
        _ => {
            let (name, sign, wrong) = match random.below(3) {
                0 => ("add", "+", ["-", "*", "/"]),
                1 => ("multiply", "*", ["+", "-", "%"]),
                _ => ("subtract", "-", ["+", "*", "//"]),
            };
            let names = some(random, &["a", "b", "x", "y", "left", "right", "first", "second"], 2);
            let end = |sign: &str| format!(" {} {sign} {}", names[0], names[1]);
            let (choices, label) = four(random, end(sign), wrong.map(end));
            json!({"program": format!("def {name}({}, {}):\n    return", names[0], names[1]), "choices": choices, "label": label})
        }
    }
}

fn grammar(number: usize, random: &mut Random) -> Value {
    const NOUNS: [[&str; 2]; 8] = [
        ["dog", "dogs"],
        ["teacher", "teachers"],
        ["child", "children"],
        ["doctor", "doctors"],
        ["bird", "birds"],
        ["woman", "women"],
        ["engine", "engines"],
        ["farmer", "farmers"],
    ];
    const VERBS: [[&str; 2]; 6] = [
        ["sleeps", "sleep"],
        ["waits", "wait"],
        ["is here", "are here"],
        ["works", "work"],
        ["was late", "were late"],
        ["has left", "have left"],
    ];
    let (noun, other, verb) = (NOUNS[random.below(8)], NOUNS[random.below(8)], VERBS[random.below(6)]);
    let plural = random.below(2);
    let pair = |of: &dyn Fn(usize) -> String| (of(plural), of(1 - plural));
    let (kind, (good, bad)) = match number % 4 {
        0 => ("subject_verb", pair(&|n| format!("The {} {}.", noun[plural], verb[n]))),
        1 => {
            // The noun beside the verb has the other number.
            (
                "distractor",
                pair(&|n| format!("The {} near the {} {}.", noun[plural], other[1 - plural], verb[n])),
            )
        }
        2 => {
            let pronouns = ["itself", "themselves"];
            let noun = NOUNS[[0, 4, 6][random.below(3)]];
            ("anaphor", pair(&|n| format!("The {} moved by {}.", noun[plural], pronouns[n])))
        }
        _ => {
            let determiners = [["this", "that"], ["these", "those"]];
            let far = random.below(2);
            let name = pick(random, &PEOPLE);
            ("determiner", pair(&|n| format!("{name} saw {} {}.", determiners[n][far], noun[plural])))
        }
    };
    json!({"sentence_good": good, "sentence_bad": bad, "UID": kind})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_in_each_language() {
        let wanted = [
            (0, ["zero", "null", "zéro", "cero"]),
            (16, ["sixteen", "sechzehn", "seize", "dieciséis"]),
            (21, ["twenty-one", "einundzwanzig", "vingt et un", "veintiuno"]),
            (30, ["thirty", "dreißig", "trente", "treinta"]),
            (71, ["seventy-one", "einundsiebzig", "soixante et onze", "setenta y uno"]),
            (80, ["eighty", "achtzig", "quatre-vingts", "ochenta"]),
            (81, ["eighty-one", "einundachtzig", "quatre-vingt-un", "ochenta y uno"]),
            (97, ["ninety-seven", "siebenundneunzig", "quatre-vingt-dix-sept", "noventa y siete"]),
        ];
        for (n, words) in wanted {
            assert_eq!(number_words(n), words);
        }
        let all: std::collections::HashSet<[String; 4]> = (0..100).map(number_words).collect();
        assert_eq!(all.len(), 100);
    }

    #[test]
    fn families_are_the_same_each_time_and_balanced() {
        for name in NAMES {
            let (_, documents) = family(name).unwrap();
            assert_eq!(documents.len(), DOCUMENTS);
            assert_eq!(documents, family(name).unwrap().1, "{name}");
            let distinct: std::collections::HashSet<String> =
                documents.iter().map(|d| Value::Object(d.clone()).to_string()).collect();
            assert!(distinct.len() > DOCUMENTS / 2, "{name}: {} distinct documents", distinct.len());
            if name == "grammar" {
                assert!(documents.iter().all(|d| d["sentence_good"] != d["sentence_bad"]));
                continue;
            }
            let choices = match name {
                "logic" => 2,
                "inference" => 3,
                _ => 4,
            };
            let mut labels = vec![0; choices];
            for document in &documents {
                let label = document["label"].as_u64().unwrap() as usize;
                labels[label] += 1;
                let Some(list) = document.get("choices").and_then(Value::as_array) else { continue };
                let different: std::collections::HashSet<&str> =
                    list.iter().filter_map(Value::as_str).collect();
                assert_eq!((list.len(), different.len()), (choices, choices), "{name}: {document:?}");
            }
            // A label that is always guessed gains little: within 3.5 standard deviations of chance.
            let (n, p) = (DOCUMENTS as f64, 1.0 / choices as f64);
            let bound = n * p + 3.5 * (n * p * (1.0 - p)).sqrt();
            assert!(labels.iter().all(|&count| f64::from(count) <= bound), "{name}: {labels:?}");
        }
        assert!(family("nothing").is_none());
    }

    /// The programs of the family, run by a reader of their five forms.
    #[test]
    fn programs_print_the_right_choice() {
        let (_, documents) = family("code").unwrap();
        for document in &documents {
            let program = document["program"].as_str().unwrap();
            let right = document["choices"][document["label"].as_u64().unwrap() as usize].as_str().unwrap();
            let numbers: Vec<i64> = program
                .split(|c: char| !c.is_ascii_digit())
                .filter_map(|digits| digits.parse().ok())
                .collect();
            let wanted = match (program.split_whitespace().next().unwrap(), program.contains("return n")) {
                ("x", _) => numbers[0] * numbers[1] + numbers[2],
                ("total", _) => numbers[1] * numbers[2],
                ("items", _) => numbers.iter().sum(),
                ("def", true) => numbers[1] - numbers[0] + numbers[2],
                _ => continue,
            };
            assert_eq!(right, format!(" {wanted}"), "{program}");
        }
    }
}
