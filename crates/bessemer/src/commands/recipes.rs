//! `bessemer recipes`: the recipes that the program carries.

use crate::cli::RecipesCommand;
use crate::console::print;
use crate::failure::Failure;
use bessemer_recipe::{BUILTIN_RECIPES, builtin_recipe};
use bessemer_units::did_you_mean;
use serde_json::json;

pub(crate) fn run(command: Option<&RecipesCommand>, as_json: bool) -> Result<(), Failure> {
    match command {
        None => list(as_json),
        Some(RecipesCommand::Show { name }) => show(name, as_json),
    }
}

fn list(as_json: bool) -> Result<(), Failure> {
    if as_json {
        let recipes = BUILTIN_RECIPES.iter().map(|r| json!({ "name": r.name, "summary": r.summary() }));
        return Ok(print(&json!(recipes.collect::<Vec<_>>()).to_string())?);
    }
    let mut text = String::new();
    for recipe in BUILTIN_RECIPES {
        text += &format!("{:<27} {}\n", recipe.name, recipe.summary());
    }
    text += "\nrun one: bessemer run NAME    print one: bessemer recipes show NAME";
    Ok(print(&text)?)
}

fn show(name: &str, as_json: bool) -> Result<(), Failure> {
    let recipe = builtin_recipe(name).ok_or_else(|| {
        let names = BUILTIN_RECIPES.iter().map(|recipe| recipe.name);
        let near = did_you_mean(name, names.clone());
        let names = names.collect::<Vec<_>>().join(", ");
        Failure::usage(format!("there is no built-in recipe {name:?}{near}; there are {names}"))
    })?;
    Ok(print(&match as_json {
        true => json!({ "name": recipe.name, "recipe": recipe.text }).to_string(),
        false => recipe.text.to_owned(),
    })?)
}
