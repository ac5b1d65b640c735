//! Recipes that the program carries: the files of `recipes/`, by name.

/// A recipe that the program carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BuiltinRecipe {
    /// Name by which a command line and the key `base` refer to it.
    pub name: &'static str,
    /// TOML with comments.
    pub text: &'static str,
}

impl BuiltinRecipe {
    /// First line of the recipe, a comment.
    pub fn summary(&self) -> &'static str {
        let line = self.text.lines().next().unwrap_or_default();
        line.trim_start_matches(['#', ' ']).trim_end_matches('.')
    }
}

macro_rules! builtin {
    ($($name:literal),* $(,)?) => {
        &[$(BuiltinRecipe { name: $name, text: include_str!(concat!("../../../recipes/", $name, ".toml")) }),*]
    };
}

/// All built-in recipes: the first one to try, then models, then corpora.
pub const BUILTIN_RECIPES: &[BuiltinRecipe] = builtin![
    "quickstart",
    "tinyshakespeare-char",
    "tinyshakespeare-char-large",
    "gpt2-124m",
    "llama-1b",
    "fineweb",
    "refinedweb",
    "data-factory",
];

/// The built-in recipe of a name, with or without `.toml`.
pub fn builtin_recipe(name: &str) -> Option<BuiltinRecipe> {
    let name = name.strip_suffix(".toml").unwrap_or(name);
    BUILTIN_RECIPES.iter().find(|recipe| recipe.name == name).copied()
}

/// Remedy for a recipe that is not there: the built-in recipe of a similar name, or all of them.
pub(crate) fn suggestion(path: &std::path::Path) -> String {
    let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
    match bessemer_units::nearest(name, BUILTIN_RECIPES.iter().map(|recipe| recipe.name)) {
        Some(near) => format!("did you mean the built-in recipe `{near}`?"),
        None => {
            "`bessemer recipes` lists the built-in ones, `bessemer init TEXT` writes one for a text".into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_recipes_is_built_in_and_has_a_summary() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../recipes");
        let mut files: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort();
        let mut names: Vec<String> = BUILTIN_RECIPES.iter().map(|r| format!("{}.toml", r.name)).collect();
        names.sort();
        assert_eq!(names, files);
        for recipe in BUILTIN_RECIPES {
            let summary = recipe.summary();
            assert!(summary.len() >= 20 && summary.len() <= 90, "{}: {summary}", recipe.name);
        }
    }
}
