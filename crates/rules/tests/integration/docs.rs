//! docs/rules.md names every profile, measure and kind.

use bessemer_rules::{Cut, Lines, MEASURES, Profile, Variant};

#[test]
fn the_page_names_everything() {
    let page = include_str!("../../../../docs/rules.md");
    let names = Profile::names()
        .into_iter()
        .chain(MEASURES.iter().map(|(name, _, _)| *name))
        .chain(Lines::ALL.map(Lines::name))
        .chain(Variant::ALL.map(Variant::name));
    for name in names {
        assert!(page.contains(&format!("`{name}`")), "docs/rules.md lacks `{name}`");
    }
    for language in Profile::fineweb2_languages() {
        assert!(page.contains(language), "docs/rules.md lacks {language}");
    }
    for cut in Cut::ALL {
        assert!(page.contains(cut.name()), "docs/rules.md lacks {}", cut.name());
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
