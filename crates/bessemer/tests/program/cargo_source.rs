//! The text of the quickstart: the dependencies of a workspace as a build has just downloaded them, the same on every
//! machine; and what is said where they cannot be had.

use crate::workplace::{GPT2, Workplace, finished};
use std::fs;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// A registry on the disk, which cargo reads in the place of crates.io.
struct Registry<'a>(&'a Path);

impl Registry<'_> {
    /// Lists a crate; only one that is `packed` can be downloaded.
    fn add(&self, name: &str, packed: bool) {
        let folder = self.0.join(format!("make/{name}-1.0.0"));
        fs::create_dir_all(folder.join("src")).unwrap();
        let manifest = format!(
            "[package]\nname = \"{name}\"\nversion = \"1.0.0\"\nedition = \"2021\"\nlicense = \"MIT\"\n"
        );
        fs::write(folder.join("Cargo.toml"), manifest).unwrap();
        let line = format!(
            "/// Says which crate this is, at some length, since the shortest documents of all are dropped: {name}.\n"
        );
        fs::write(
            folder.join("src/lib.rs"),
            format!("{line}pub fn {name}() -> &'static str {{\n    \"{name}\"\n}}\n"),
        )
        .unwrap();
        let path = self.0.join(format!("{name}-1.0.0.crate"));
        let mut tar = Command::new("tar");
        tar.arg("czf").arg(&path).arg("-C").arg(self.0.join("make")).arg(format!("{name}-1.0.0"));
        assert!(tar.status().unwrap().success());
        let sum = finished({
            let mut sum = Command::new("sha256sum");
            sum.arg(&path);
            sum
        });
        let sum = sum.text().split_whitespace().next().unwrap().to_string();
        let index = self.0.join("index").join(&name[..2]).join(&name[2..4]);
        fs::create_dir_all(&index).unwrap();
        let entry = format!(
            "{{\"name\":\"{name}\",\"vers\":\"1.0.0\",\"deps\":[],\"cksum\":\"{sum}\",\"features\":{{}},\"yanked\":false}}\n"
        );
        fs::write(index.join(name), entry).unwrap();
        if !packed {
            fs::remove_file(path).unwrap();
        }
    }
}

#[test]
fn the_source_is_what_a_build_has_downloaded_and_nothing_else() {
    let folder = TempDir::new().unwrap();
    let (registry, home, workspace) =
        (folder.path().join("registry"), folder.path().join("home"), folder.path().join("workspace"));
    fs::create_dir_all(&registry).unwrap();
    for (name, packed) in [
        ("used", true),
        ("building", true),
        ("tested", false),
        ("elsewhere", false),
        ("optional", false),
        ("others", false),
    ] {
        Registry(&registry).add(name, packed);
    }
    let write = |path: &str, text: &str| {
        let path = workspace.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write(
        ".cargo/config.toml",
        &format!(
            "[source.crates-io]\nreplace-with = \"disk\"\n[source.disk]\nlocal-registry = {:?}\n",
            registry.display().to_string()
        ),
    );
    write(
        "Cargo.toml",
        "[workspace]\nresolver = \"3\"\nmembers = [\"app\", \"other\"]\ndefault-members = [\"app\"]\n",
    );
    let head =
        |name: &str| format!("[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2021\"\n");
    write(
        "app/Cargo.toml",
        &format!(
            "{}[dependencies]\nused = \"1\"\noptional = {{ version = \"1\", optional = true }}\n\
             [build-dependencies]\nbuilding = \"1\"\n[dev-dependencies]\ntested = \"1\"\n\
             [target.'cfg(windows)'.dependencies]\nelsewhere = \"1\"\n",
            head("app")
        ),
    );
    write("app/src/main.rs", "fn main() {\n    used::used();\n}\n");
    write("app/build.rs", "fn main() {\n    building::building();\n}\n");
    write("other/Cargo.toml", &format!("{}[dependencies]\nothers = \"1\"\n", head("other")));
    write("other/src/lib.rs", "");
    let cargo = |words: &[&str]| {
        let mut cargo = Command::new("cargo");
        cargo
            .args(words)
            .current_dir(&workspace)
            .env("CARGO_HOME", &home)
            .env("CARGO_TARGET_DIR", folder.path().join("target"));
        cargo.env_remove("CARGO_BUILD_TARGET");
        finished(cargo)
    };
    assert_eq!(cargo(&["generate-lockfile"]).code, Some(0));
    let built = cargo(&["build", "--locked"]);
    assert_eq!(built.code, Some(0), "{built:?}");
    // The state of a machine on which nothing but the build has run.
    let metadata = cargo(&["metadata", "--offline", "--locked", "--format-version", "1"]);
    assert_ne!(metadata.code, Some(0), "the crates of other targets and tests are not there");

    let place = Workplace::new(GPT2);
    let path = format!("corpus.path={}", workspace.display());
    let build = |overrides: &[&str]| {
        let mut words =
            vec!["corpus", "build", "recipe.toml", "--set", "corpus.source=cargo", "--set", &path];
        words.extend(overrides.iter().flat_map(|change| ["--set", change]));
        let mut command = place.command(&words);
        command.env("CARGO_HOME", &home);
        let done = finished(command);
        assert_eq!(done.code, Some(0), "{}", done.err);
        let stats = place.bessemer(&["corpus", "stats", "runs/t", "--json"]).json();
        let sources = stats["sources"].as_array().unwrap().clone();
        sources
            .iter()
            .map(|s| format!("{} {}", s["name"].as_str().unwrap(), s["licence"]))
            .collect::<Vec<String>>()
    };
    let expected = ["building \"MIT\"", "used \"MIT\""];
    assert_eq!(build(&[]), expected);
    // From a member's folder it is the same workspace, with the same list.
    let path_of_member = format!("corpus.path={}", workspace.join("other").display());
    assert_eq!(build(&[&path_of_member]), expected);
    assert_eq!(
        build(&["corpus.workspace_members=true"]),
        ["app null", "building \"MIT\"", "other null", "used \"MIT\""]
    );
}

#[test]
fn a_fallback_is_said_at_the_start_at_the_end_in_the_report_and_in_json() {
    let place = Workplace::new(GPT2);
    // There is no workspace here, so the documented default has no dependencies to read; and no Python on the path.
    let run = |words: &[&str]| {
        let auto = ["run", "recipe.toml", "--set", "corpus.source=auto", "--set", "corpus.path=''"];
        let mut command = place.command(&[&auto[..], words].concat());
        command.env("PATH", "");
        finished(command)
    };
    let done = run(&["--json"]);
    let json = done.json();
    let warning =
        done.err.find("warning: the embedded corpus is read").unwrap_or_else(|| panic!("{}", done.err));
    assert!(warning < done.err.find("corpus (embedded)").unwrap(), "{}", done.err);
    assert_eq!(json["corpus"]["source"], "embedded");
    assert!(json["corpus"]["fallback"].as_str().unwrap().contains("no Cargo.toml"), "{json}");
    assert!(place.records("corpus")[0]["fallback"].as_str().unwrap().contains("no Cargo.toml"));
    let report = fs::read_to_string(place.path("runs/t/report.html")).unwrap();
    let header = &report[report.find("<header>").unwrap()..report.find("</header>").unwrap()];
    assert!(
        header.contains("Trained on another text than the recipe names: the embedded corpus"),
        "{header}"
    );
    let stats = place.bessemer(&["corpus", "stats", "runs/t", "--json"]).json();
    assert!(stats["fallback"].as_str().unwrap().contains("no Cargo.toml"));
    // The table at the end, of a second session on the same run.
    let done = run(&[]);
    assert!(done.text().contains("the embedded corpus is read instead"), "{}", done.text());
    // A source that was asked for is read or is an error.
    place
        .bessemer(&[
            "corpus",
            "build",
            "recipe.toml",
            "--set",
            "corpus.source=cargo",
            "--set",
            "run.name=u",
            "--set",
            "corpus.path=''",
        ])
        .failed(1, &["no Cargo.toml"]);
}
