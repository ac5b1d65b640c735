//! Recipes; the first line, where it begins with `--set `, is a setting of the command line.

use bessemer_recipe::parse_recipe;

/// Runs the target on one input.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut sets = Vec::new();
    if let Some((line, _)) = text.split_once('\n')
        && let Some(set) = line.strip_prefix("#--set ")
    {
        sets.push(set.to_string());
    }
    match parse_recipe("fuzz.toml", text, &sets) {
        // Profiles and predicates are not read by the recipe.
        Ok(loaded) => {
            let _ = bessemer_corpus::check(&loaded.value.corpus);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
