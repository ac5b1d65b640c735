//! Tasks by the cognitive levels of KoLA (Yu et al. 2023, arXiv 2306.09296) about a small world that is generated here, the same each time. No model has seen it,
//! so what a model learns from its [`facts`] is what it was trained on.
//!
//! | level | name | question | chance gives |
//! |---|---|---|---|
//! | KM, memorization | `kola-frequent`, `kola-rare` | how a fact ends that six documents, or one, state; four choices | 0.25 |
//! | KU, understanding | `kola-concepts` | what kind of thing a name is; four choices | 0.25 |
//! | | `kola-relations` | which relation a sentence about strangers states; four choices | 0.25 |
//! | KA, applying | `kola-two-hops` | the region of the town of birth, which no document states of a person; four choices | 0.25 |
//! | | `kola-same-town` | whether two people were born in one town | 0.5 |
//! | KC, creating | `kola-story`, `kola-new-story` | a life after its first sentence, of people in the facts, and of strangers: self-contrast | up to 1/3 |

use crate::data::Document;
use crate::formats::fields;
use bessemer_mersenne::PythonRandom as Random;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

/// Name of all of these tasks together, with those of task files that have a level.
pub const ALL: &str = "kola-small";
/// Names of the tasks, by rising level.
pub const NAMES: [&str; 8] = [
    "kola-frequent",
    "kola-rare",
    "kola-concepts",
    "kola-relations",
    "kola-two-hops",
    "kola-same-town",
    "kola-story",
    "kola-new-story",
];

const SEED: u64 = 230_609_296;
/// People whose lives several documents tell, and those of one document; as many strangers are in no document.
const PEOPLE: usize = 24;
/// Documents about each of the first kind.
const TIMES: usize = 6;
const FIRST_NAMES: [&str; 12] =
    ["Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry", "Iris", "Jack", "Laura", "Martin"];
const TRADES: [&str; 8] = ["baker", "doctor", "painter", "pilot", "sailor", "singer", "teacher", "weaver"];

struct Person {
    name: String,
    town: usize,
    company: usize,
    trade: usize,
    year: usize,
}

/// People first, in the order frequent, rare, strangers.
struct World {
    people: Vec<Person>,
    towns: Vec<String>,
    companies: Vec<String>,
    regions: Vec<String>,
    /// Region of each town, town of each company.
    region: Vec<usize>,
    seat: Vec<usize>,
}

/// Names of two or three syllables, each once.
fn names(random: &mut Random, count: usize, ends: &[&str], taken: &mut BTreeSet<String>) -> Vec<String> {
    const STARTS: [&str; 12] =
        ["Bel", "Cor", "Dra", "Fen", "Gal", "Hol", "Kar", "Lun", "Mar", "Nor", "Tor", "Vel"];
    const MIDDLES: [&str; 8] = ["a", "e", "i", "o", "u", "ano", "eri", "ulo"];
    let mut found = Vec::new();
    while found.len() < count {
        let [start, middle, end] = [random.below(12), random.below(8), random.below(ends.len())];
        let name = format!("{}{}{}", STARTS[start], MIDDLES[middle], ends[end]);
        if taken.insert(name.clone()) {
            found.push(name);
        }
    }
    found
}

impl World {
    fn new() -> World {
        let mut random = Random::new(SEED);
        let mut taken = BTreeSet::new();
        let regions = names(&mut random, 4, &["land", "mark"], &mut taken);
        let towns = names(&mut random, 8, &["burg", "ford", "wick"], &mut taken);
        let companies = names(&mut random, 8, &["tex", "plan", "dyne"], &mut taken);
        let surnames = names(&mut random, 3 * PEOPLE, &["ski", "sen", "rro", "dahl"], &mut taken);
        let people = surnames.into_iter().map(|surname| Person {
            name: format!("{} {surname}", FIRST_NAMES[random.below(FIRST_NAMES.len())]),
            town: random.below(towns.len()),
            company: random.below(companies.len()),
            trade: random.below(TRADES.len()),
            year: 1950 + random.below(50),
        });
        World {
            people: people.collect(),
            region: (0..towns.len()).map(|town| town % regions.len()).collect(),
            seat: random.sample(towns.len(), companies.len()),
            regions,
            towns,
            companies,
        }
    }

    fn frequent(&self) -> &[Person] {
        &self.people[..PEOPLE]
    }

    fn rare(&self) -> &[Person] {
        &self.people[PEOPLE..2 * PEOPLE]
    }

    fn strangers(&self) -> &[Person] {
        &self.people[2 * PEOPLE..]
    }

    /// Facts about a person: how a sentence begins, and how it ends.
    fn of_person(&self, person: &Person) -> [(String, String); 4] {
        let Person { name, town, company, trade, year } = person;
        [
            (format!("{name} was born in"), self.towns[*town].clone()),
            (format!("{name} works for"), self.companies[*company].clone()),
            (format!("{name} is a person, by trade a"), TRADES[*trade].to_owned()),
            (format!("{name} was born in the year"), year.to_string()),
        ]
    }

    /// Sentences of a life, in this order.
    fn life(&self, person: &Person) -> [String; 4] {
        self.of_person(person).map(|(start, end)| format!("{start} {end}."))
    }
}

/// Texts that state the facts of the world, a document each: lives, each a person's sentences in another order, and towns and companies.
pub fn facts() -> Vec<String> {
    let world = World::new();
    let mut random = Random::new(SEED + 1);
    let mut documents = Vec::new();
    for time in 0..TIMES {
        let rare = if time == 0 { world.rare() } else { &[] };
        for person in world.frequent().iter().chain(rare) {
            let mut life = world.life(person);
            // Orders of four sentences, each once.
            life.rotate_left(time % 4);
            if time / 4 == 1 {
                life.reverse();
            }
            documents.push(life.join(" "));
        }
        let town = |(town, name): (usize, &String)| {
            format!("{name} is a town. {name} lies in the region of {}.", world.regions[world.region[town]])
        };
        let company = |(company, name): (usize, &String)| {
            let seat = &world.towns[world.seat[company]];
            format!("{name} is a company. {name} has its seat in {seat}.")
        };
        let region = |name: &String| format!("{name} is a region.");
        let things = world.towns.iter().enumerate().map(town);
        let things = things.chain(world.companies.iter().enumerate().map(company));
        let things: Vec<String> = things.chain(world.regions.iter().map(region)).collect();
        // Distinct documents: equal ones are one for a corpus.
        documents.push(
            random
                .sample(things.len(), things.len())
                .into_iter()
                .map(|i| things[i].as_str())
                .collect::<Vec<_>>()
                .join(" "),
        );
    }
    documents
}

/// Four different choices, the right one at a random place.
fn choices(random: &mut Random, right: &str, all: &[&str]) -> (Vec<String>, usize) {
    let order = random.sample(all.len(), all.len());
    let wrong = order.into_iter().map(|i| all[i]).filter(|one| *one != right).take(3);
    let mut choices: Vec<String> = wrong.map(str::to_owned).collect();
    let label = random.below(choices.len() + 1);
    choices.insert(label, right.to_owned());
    (choices, label)
}

fn texts(list: &[String]) -> Vec<&str> {
    list.iter().map(String::as_str).collect()
}

/// The first three facts of each person, as beginnings of sentences.
fn memory(world: &World, people: &[Person], random: &mut Random) -> Vec<Value> {
    let sets = [texts(&world.towns), texts(&world.companies), TRADES.to_vec()];
    let facts = people.iter().flat_map(|person| world.of_person(person).into_iter().zip(&sets));
    facts
        .map(|((start, end), all)| {
            let (choices, label) = choices(random, &end, all);
            json!({"text": start, "choices": choices, "label": label})
        })
        .collect()
}

fn concepts(world: &World, random: &mut Random) -> Vec<Value> {
    let kinds = ["town", "company", "region", "person"];
    let people: Vec<String> = world.rare().iter().map(|person| person.name.clone()).collect();
    let mut documents = Vec::new();
    for (kind, names) in kinds.into_iter().zip([&world.towns, &world.companies, &world.regions, &people]) {
        for name in names.iter().take(8) {
            let (choices, label) = choices(random, kind, &kinds);
            documents.push(json!({"text": format!("{name} is a"), "choices": choices, "label": label}));
        }
    }
    documents
}

fn relations(world: &World, random: &mut Random) -> Vec<Value> {
    let names = ["place of birth", "employer", "trade", "year of birth"];
    let of = |person: &Person| world.life(person).into_iter().zip(names).collect::<Vec<_>>();
    let all = world.strangers().iter().flat_map(of);
    all.map(|(sentence, name)| {
        let (choices, label) = choices(random, name, &names);
        let text = format!("{sentence}\nThe relation in this sentence is the");
        json!({"text": text, "choices": choices, "label": label})
    })
    .collect()
}

fn two_hops(world: &World, random: &mut Random) -> Vec<Value> {
    let all = texts(&world.regions);
    let people = world.frequent().iter().chain(world.rare());
    people
        .map(|person| {
            let right = &world.regions[world.region[person.town]];
            let (choices, label) = choices(random, right, &all);
            let text = format!("{} was born in the region of", person.name);
            json!({"text": text, "choices": choices, "label": label})
        })
        .collect()
}

/// As many pairs of one town as of two.
fn same_town(world: &World, random: &mut Random) -> Vec<Value> {
    let people = world.frequent();
    let mut sides: [Vec<Value>; 2] = Default::default();
    for (i, one) in people.iter().enumerate() {
        for other in &people[i + 1..] {
            let label = usize::from(one.town != other.town);
            let text =
                format!("Question: Were {} and {} born in the same town?\nAnswer:", one.name, other.name);
            sides[label].push(json!({"text": text, "choices": ["yes", "no"], "label": label}));
        }
    }
    let each = sides[0].len().min(sides[1].len()).min(PEOPLE);
    let mut documents = Vec::new();
    for side in sides {
        documents.extend(random.sample(side.len(), each).into_iter().map(|i| side[i].clone()));
    }
    documents
}

/// Lives of which the first sentence is given; with knowledge, the others as events before it.
fn stories(world: &World, people: &[Person]) -> Vec<Value> {
    people
        .iter()
        .map(|person| {
            let [first, rest @ ..] = world.life(person);
            let events = rest.join("\n- ");
            json!({"text": first, "informed": format!("Events:\n- {events}\n{first}"), "story": rest.join(" ")})
        })
        .collect()
}

/// The task of this name and its documents.
pub(crate) fn task(name: &str) -> Option<(Map<String, Value>, Vec<Document>)> {
    let number = NAMES.iter().position(|one| *one == name)?;
    let (world, mut random) = (World::new(), Random::new(SEED + 2 + number as u64));
    let random = &mut random;
    let (level, siblings, documents) = match name {
        "kola-frequent" => ("KM", "memorization", memory(&world, world.frequent(), random)),
        "kola-rare" => ("KM", "memorization", memory(&world, world.rare(), random)),
        "kola-concepts" => ("KU", name, concepts(&world, random)),
        "kola-relations" => ("KU", name, relations(&world, random)),
        "kola-two-hops" => ("KA", name, two_hops(&world, random)),
        "kola-same-town" => ("KA", name, same_town(&world, random)),
        "kola-story" => ("KC", "creation", stories(&world, world.frequent())),
        _ => ("KC", "creation", stories(&world, world.strangers())),
    };
    let form = match level {
        "KC" => {
            "output_type: generate_until\ndoc_to_text: text\ndoc_to_text_with_knowledge: informed\ndoc_to_target: story\n\
             generation_kwargs: {until: [\"\\n\"], max_gen_toks: 40}\nmetric_list: [{metric: self_contrast}, {metric: rougeL}]"
        }
        _ => {
            "output_type: multiple_choice\ndoc_to_text: text\ndoc_to_choice: choices\ndoc_to_target: label\nmetric_list: [{metric: acc}]"
        }
    };
    let map = fields(&format!(
        "task: {name}\nlevel: {level}\nsiblings: {siblings}\ntest_split: test\n{form}\nmetadata: {{version: 1}}\n"
    ));
    let documents = documents.into_iter().map(|document| match document {
        Value::Object(map) => map,
        other => unreachable!("a document of a task: {other}"),
    });
    Some((map, documents.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_the_same_each_time_and_ask_what_the_facts_state() {
        let facts = facts();
        let distinct: BTreeSet<&String> = facts.iter().collect();
        assert_eq!((facts.len(), distinct.len()), (TIMES * (PEOPLE + 1) + PEOPLE, facts.len()));
        assert_eq!(facts, super::facts());
        let all = facts.join("\n");
        for name in NAMES {
            let (_, documents) = task(name).unwrap();
            assert_eq!(documents, task(name).unwrap().1, "{name}");
            assert!(documents.len() >= PEOPLE, "{name}: {}", documents.len());
            for document in &documents {
                let text = document["text"].as_str().unwrap();
                let Some(label) = document.get("label").and_then(Value::as_u64) else {
                    let story = document["story"].as_str().unwrap();
                    let known = story.split_inclusive('.').all(|sentence| all.contains(sentence.trim()));
                    assert_eq!(known, name == "kola-story", "{story}");
                    assert!(document["informed"].as_str().unwrap().ends_with(text));
                    continue;
                };
                let choices: Vec<&str> =
                    document["choices"].as_array().unwrap().iter().map(|one| one.as_str().unwrap()).collect();
                assert_eq!(choices.iter().collect::<BTreeSet<_>>().len(), choices.len(), "{document:?}");
                // A fact of memory or a concept is stated with the right end and with no other; one of two hops is not stated.
                for (i, choice) in choices.iter().enumerate() {
                    let stated = all.contains(&format!("{text} {choice}"));
                    match name {
                        "kola-frequent" | "kola-rare" | "kola-concepts" => {
                            assert_eq!(stated, i as u64 == label, "{text} {choice}");
                        }
                        _ => assert!(!stated, "{text} {choice}"),
                    }
                }
            }
        }
        // Frequent facts are stated six times, rare ones once.
        for (people, times) in [("kola-frequent", TIMES), ("kola-rare", 1)] {
            let document = &task(people).unwrap().1[0];
            let end = document["choices"][document["label"].as_u64().unwrap() as usize].as_str().unwrap();
            let fact = format!("{} {end}", document["text"].as_str().unwrap());
            assert_eq!(all.matches(&fact).count(), times, "{fact}");
        }
        assert!(task("kola-other").is_none());
    }

    #[test]
    fn labels_give_nothing_away() {
        for name in &NAMES[..6] {
            let (_, documents) = task(name).unwrap();
            let choices = documents[0]["choices"].as_array().unwrap().len();
            let mut labels = vec![0; choices];
            documents.iter().for_each(|one| labels[one["label"].as_u64().unwrap() as usize] += 1);
            // A label that is always guessed stays within 3.5 standard deviations of chance.
            let (n, p) = (documents.len() as f64, 1.0 / choices as f64);
            let bound = n * p + 3.5 * (n * p * (1.0 - p)).sqrt();
            assert!(labels.iter().all(|&count| f64::from(count) <= bound), "{name}: {labels:?}");
        }
    }
}
