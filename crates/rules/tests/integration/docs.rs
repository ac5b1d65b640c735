//! docs/rules.md names every profile, measure and kind.

use bessemer_rules::{Lines, MEASURES, MeasureSpec, Profile, Variant, WordSegmenter};

#[test]
fn the_page_names_everything() {
    let page = include_str!("../../../../docs/rules.md");
    let names = Profile::names()
        .into_iter()
        .chain(Lines::ALL.map(Lines::name))
        .chain(Variant::ALL.map(Variant::name));
    for name in names {
        assert!(page.contains(&format!("`{name}`")), "docs/rules.md lacks `{name}`");
    }
    for language in Profile::fineweb2_languages() {
        assert!(page.contains(language), "docs/rules.md lacks {language}");
    }
    for cut in WordSegmenter::ALL {
        assert!(page.contains(cut.name()), "docs/rules.md lacks {}", cut.name());
    }
}

/// What precedes and follows the table of the measures on the page.
const TABLE_START: &str = "<!-- measures: written from crates/rules/src/measures by BESSEMER_GOLDEN=write cargo test -p bessemer-rules -->\n";
const TABLE_END: &str = "<!-- end of measures -->";

#[test]
fn the_table_of_measures_is_that_of_the_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/rules.md");
    let page = std::fs::read_to_string(path).expect("the page");
    let (before, rest) = page.split_once(TABLE_START).expect("the beginning of the table");
    let (table, after) = rest.split_once(TABLE_END).expect("the end of the table");
    let mut wanted =
        String::from("| measure | parameters | value | formula | origin |\n|---|---|---|---|---|\n");
    for measure in MEASURES {
        let MeasureSpec { name, value, formula, origin, .. } = measure;
        let parameters = measure.parameters.join(", ");
        wanted += &format!("| `{name}` | {parameters} | {value} | {formula} | {origin} |\n");
    }
    if table == wanted {
        return;
    }
    assert_eq!(
        std::env::var("BESSEMER_GOLDEN").as_deref(),
        Ok("write"),
        "docs/rules.md has another table of measures: write it anew, as its head says"
    );
    std::fs::write(path, format!("{before}{TABLE_START}{wanted}{TABLE_END}{after}")).expect("writable");
}

#[test]
fn every_measure_has_a_name_of_its_own_and_says_what_it_is() {
    for (index, measure) in MEASURES.iter().enumerate() {
        assert!(MEASURES[..index].iter().all(|other| other.name != measure.name), "{}", measure.name);
        for said in [measure.value, measure.formula, measure.origin] {
            assert!(!said.is_empty(), "{}", measure.name);
        }
    }
}

#[test]
fn the_profile_of_the_page_compiles() {
    let page = include_str!("../../../../docs/rules.md");
    let block = page
        .split("```text\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .expect("the block of a profile");
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("bad.txt"), "darn\n").expect("writable");
    Profile::parse(block, Some(folder.path())).unwrap_or_else(|error| panic!("{error}"));
}
