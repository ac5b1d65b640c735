//! Where the seconds of a build go, from the page that `cargo build --timings` writes.

use crate::cargo::{Arguments, Package, cargo, packages, processor_seconds};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;
use std::time::Instant;

const SLOWEST: usize = 20;

/// One call of the compiler or of a build script, as cargo 1.95 writes it.
#[derive(Deserialize)]
struct Unit {
    name: String,
    version: String,
    /// Empty for a library; else ` build-script`, ` build-script (run)`, ` NAME "bin"`, ` NAME "lib" (test)`, ` NAME "test" (test)`.
    target: String,
    start: f64,
    duration: f64,
    /// `["frontend", {start, end}]`, `["codegen", ...]`; the metadata that dependents need exist after the first.
    sections: Option<Vec<(String, Section)>>,
}

#[derive(Deserialize)]
struct Section {
    end: f64,
}

impl Unit {
    fn is_library(&self) -> bool {
        self.target.is_empty()
    }

    fn is_test(&self) -> bool {
        self.target.ends_with("(test)")
    }

    fn is_build_script(&self) -> bool {
        self.target.starts_with(" build-script")
    }

    /// Seconds until dependents can begin.
    fn metadata_ready(&self) -> f64 {
        let frontend = self.sections.iter().flatten().find(|(name, _)| name == "frontend");
        frontend.map_or(self.duration, |(_, section)| section.end)
    }

    fn label(&self) -> String {
        format!("{}{}", self.name, self.target)
    }
}

/// The units and the number of those that were up to date.
fn read(page: &str) -> Result<(Vec<Unit>, u64), String> {
    let wrong = |why: &str| {
        format!("{why}; expected the page that cargo 1.95 writes to target/cargo-timings/cargo-timing.html")
    };
    let marker = "const UNIT_DATA = ";
    let begin = page.find(marker).ok_or_else(|| wrong("no UNIT_DATA"))? + marker.len();
    let mut units = Vec::<Unit>::deserialize(&mut serde_json::Deserializer::from_str(&page[begin..]))
        .map_err(|e| wrong(&format!("UNIT_DATA: {e}")))?;
    // Units that were up to date take no time.
    units.retain(|unit| unit.duration > 0.0);
    let fresh =
        page.split("Fresh units:</td><td>").nth(1).and_then(|rest| rest.split('<').next()?.parse().ok());
    Ok((units, fresh.unwrap_or(0)))
}

/// The longest chain of units in which each waits for the one before: the build time on machines with any number of cores.
/// Seconds are those of this build, so work beside it lengthens them. A library waits for the metadata of those it uses,
/// a program and a test for all code below it. Units that a package has twice (for the host and for the target) count once, by
/// the longer.
fn critical_path<'a>(units: &'a [Unit], packages: &[Package]) -> Vec<(&'a Unit, f64)> {
    let position: BTreeMap<(&str, &str), usize> =
        packages.iter().enumerate().map(|(at, p)| ((p.name.as_str(), p.version.as_str()), at)).collect();
    let mut of_package: Vec<Vec<&Unit>> = packages.iter().map(|_| Vec::new()).collect();
    for unit in units {
        if let Some(&at) = position.get(&(unit.name.as_str(), unit.version.as_str())) {
            of_package[at].push(unit);
        }
    }
    let mut paths = Paths { packages, of_package, libraries: BTreeMap::new() };
    let mut longest = Chain::default();
    for package in 0..packages.len() {
        let library = paths.library(package);
        longest = later(longest, library.code);
        for unit in paths.of_package[package].clone() {
            if !unit.is_library() && !unit.is_build_script() {
                let begin = paths.all_code_below(package, unit.is_test());
                longest = later(longest, begin.then(unit, unit.duration));
            }
        }
    }
    longest.units
}

/// Units one after the other, and when the last ends.
#[derive(Clone, Default)]
struct Chain<'a> {
    end: f64,
    /// Each with the seconds that the next one waits for.
    units: Vec<(&'a Unit, f64)>,
}

impl<'a> Chain<'a> {
    fn then(mut self, unit: &'a Unit, seconds: f64) -> Self {
        self.end += seconds;
        self.units.push((unit, seconds));
        self
    }
}

fn later<'a>(a: Chain<'a>, b: Chain<'a>) -> Chain<'a> {
    if b.end > a.end { b } else { a }
}

/// When the metadata and the code of a library exist.
#[derive(Clone, Default)]
struct Library<'a> {
    metadata: Chain<'a>,
    code: Chain<'a>,
}

struct Paths<'a, 'p> {
    packages: &'p [Package],
    of_package: Vec<Vec<&'a Unit>>,
    libraries: BTreeMap<usize, Library<'a>>,
}

impl<'a> Paths<'a, '_> {
    fn longest(&self, package: usize, wanted: impl Fn(&Unit) -> bool) -> Option<&'a Unit> {
        let units = self.of_package[package].iter().filter(|unit| wanted(unit));
        units.copied().max_by(|a, b| a.duration.total_cmp(&b.duration))
    }

    fn library(&mut self, package: usize) -> Library<'a> {
        if let Some(known) = self.libraries.get(&package) {
            return known.clone();
        }
        let (mut begin, mut script) = (Chain::default(), Chain::default());
        let packages = self.packages;
        for (used, edge) in &packages[package].uses {
            // A macro must be code before the compiler can load it.
            let macros = packages[*used].proc_macro;
            if edge.normal {
                let library = self.library(*used);
                begin = later(begin, if macros { library.code } else { library.metadata });
            }
            if edge.build {
                script = later(script, self.library(*used).code);
            }
        }
        let compiled = self.longest(package, |unit| unit.target == " build-script");
        let run = self.longest(package, |unit| unit.target == " build-script (run)");
        for unit in [compiled, run].into_iter().flatten() {
            script = script.then(unit, unit.duration);
        }
        if run.is_some() {
            begin = later(begin, script);
        }
        let library = match self.longest(package, Unit::is_library) {
            Some(unit) => Library {
                metadata: begin.clone().then(unit, unit.metadata_ready()),
                code: begin.then(unit, unit.duration),
            },
            None => Library { metadata: begin.clone(), code: begin },
        };
        self.libraries.insert(package, library.clone());
        library
    }

    /// The last code to exist of the libraries that a program (or a test) of a package links.
    fn all_code_below(&mut self, package: usize, test: bool) -> Chain<'a> {
        let packages = self.packages;
        let mut below = BTreeSet::from([package]);
        let dev = packages[package].uses.iter().filter(|(_, edge)| test && edge.dev);
        let mut open: Vec<usize> = dev.map(|(at, _)| *at).chain([package]).collect();
        while let Some(user) = open.pop() {
            below.insert(user);
            open.extend(
                packages[user].uses.iter().filter(|(at, e)| e.normal && !below.contains(at)).map(|u| u.0),
            );
        }
        below.into_iter().fold(Chain::default(), |last, at| later(last, self.library(at).code))
    }
}

/// Name of a group of units, and whether it contains one.
type Group<'a> = (&'a str, &'a dyn Fn(&Unit) -> bool);

fn report(page: &str, packages: &[Package]) -> Result<String, String> {
    let (mut units, fresh) = read(page)?;
    let own: BTreeSet<&str> = packages.iter().filter(|p| p.own).map(|p| p.name.as_str()).collect();
    let end = units.iter().map(|unit| unit.start + unit.duration).fold(0.0, f64::max);
    let sum: f64 = units.iter().map(|unit| unit.duration).sum();
    let mut out = format!(
        "{} units compiled ({fresh} were up to date) in {end:.0} s, {sum:.0} unit-seconds\n",
        units.len()
    );
    let groups: [Group<'_>; 3] = [
        ("own libraries and programs", &|unit| own.contains(unit.name.as_str()) && !unit.is_test()),
        ("own test programs", &|unit| unit.is_test()),
        ("outside crates", &|unit| !own.contains(unit.name.as_str())),
    ];
    for (name, contains) in groups {
        let durations: Vec<f64> =
            units.iter().filter(|unit| contains(unit)).map(|unit| unit.duration).collect();
        let _ = writeln!(
            out,
            "{:8.1}  {name} ({} units)",
            durations.iter().sum::<f64>().abs(), // the sum of nothing is -0
            durations.len()
        );
    }
    let path = critical_path(&units, packages);
    let seconds: f64 = path.iter().map(|(_, seconds)| seconds).sum();
    let _ = writeln!(
        out,
        "\ncritical path: {seconds:.1} s, {} units (seconds until the next can begin)",
        path.len()
    );
    for (unit, seconds) in &path {
        let _ = writeln!(out, "{seconds:8.1}  {}", unit.label());
    }
    let _ = writeln!(out, "\nslowest units");
    units.sort_by(|a, b| b.duration.total_cmp(&a.duration));
    for unit in units.iter().take(SLOWEST) {
        let _ = writeln!(out, "{:8.1}  {}", unit.duration, unit.label());
    }
    Ok(out)
}

/// The last page of timings that a build left.
fn build(root: &Path, arguments: &[String]) -> Result<String, String> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), |dir| root.join(dir));
    let default = ["build".to_string(), "--release".to_string()];
    let arguments = if arguments.is_empty() { &default[..] } else { arguments };
    // Arguments of test programs, after a second `--`, stay last.
    let (selection, rest) =
        arguments.split_at(arguments.iter().position(|a| a == "--").unwrap_or(arguments.len()));
    let (begun, before) = (Instant::now(), processor_seconds());
    let status = cargo(root).args(selection).arg("--timings").args(rest).status();
    let shown = arguments.join(" ");
    if !status.map_err(|e| format!("cargo {shown}: {e}"))?.success() {
        return Err(format!("cargo {shown} --timings failed: see above"));
    }
    print!("cargo {shown}: {:.0} s", begun.elapsed().as_secs_f64());
    if let (Some(before), Some(after)) = (before, processor_seconds()) {
        print!(", processor {:.0} s", after - before);
    }
    println!();
    let page = target.join("cargo-timings/cargo-timing.html");
    std::fs::read_to_string(&page).map_err(|e| format!("{}: {e}", page.display()))
}

pub(crate) fn run(arguments: &[String]) -> Result<(), String> {
    let root = crate::root();
    let arguments = Arguments::parse(arguments, &["--from"])?;
    let page = match arguments.options.get("--from") {
        Some(path) => std::fs::read_to_string(path)
            .map_err(|e| format!("{path}: {e}; expected a page of `cargo build --timings`"))?,
        None => build(&root, arguments.cargo)?,
    };
    print!("{}", report(&page, &packages(&root)?)?);
    println!("\nfor a build from nothing set CARGO_TARGET_DIR to an empty directory");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cargo::tests::sample;

    /// As cargo writes it: `a` has a library, its unit tests and a program; `b` a build script; `m` is a macro.
    fn page() -> String {
        let unit = |name: &str, target: &str, start: f64, duration: f64, frontend: Option<f64>| {
            let sections =
                frontend.map(|end| serde_json::json!([["frontend", {"start": 0.0, "end": end}], ["codegen", {"start": end, "end": duration}]]));
            serde_json::json!({"i": 0, "name": name, "version": "1.0.0", "mode": "todo", "target": target, "features": [],
                "start": start, "duration": duration, "unblocked_units": [], "sections": sections})
        };
        let units = serde_json::json!([
            unit("m", "", 0.0, 3.0, Some(1.0)),
            unit("b", " build-script", 0.0, 1.0, None),
            unit("b", " build-script (run)", 1.0, 1.0, None),
            unit("b", "", 3.0, 4.0, Some(0.5)),
            unit("c", "", 0.0, 1.0, Some(0.2)),
            unit("d", "", 0.0, 0.0, None),
            unit("a", "", 3.5, 2.0, Some(1.5)),
            unit("a", " a \"lib\" (test)", 7.0, 2.5, None),
            unit("a", " a \"bin\"", 7.0, 1.0, None),
        ]);
        format!(
            "<td>Fresh units:</td><td>12</td>\nDURATION = 10;\nconst UNIT_DATA = {units:#};\nconst CONCURRENCY_DATA = [];"
        )
    }

    #[test]
    fn a_page_becomes_units() {
        let (units, fresh) = read(&page()).expect("a page");
        assert_eq!((units.len(), fresh), (8, 12));
        assert_eq!((units[0].metadata_ready(), units[6].metadata_ready()), (1.0, 2.5));
        assert!(read("<html>").is_err_and(|e| e.contains("cargo-timing.html")));
    }

    /// A macro is waited for whole; a test waits for the code of all libraries, here b's.
    #[test]
    fn the_critical_path_waits_for_metadata_or_for_code() {
        let (units, _) = read(&page()).expect("a page");
        let path: Vec<(String, f64)> =
            critical_path(&units, &sample()).iter().map(|(unit, s)| (unit.label(), *s)).collect();
        assert_eq!(
            path,
            [("m".to_string(), 3.0), ("b".to_string(), 4.0), ("a a \"lib\" (test)".to_string(), 2.5)]
        );
    }

    #[test]
    fn groups_add_up() {
        let report = report(&page(), &sample()).expect("a page");
        for line in [
            "8 units compiled (12 were up to date) in 10 s, 16 unit-seconds",
            "     4.0  own libraries and programs (3 units)",
            "     2.5  own test programs (1 units)",
            "     9.0  outside crates (4 units)",
            "critical path: 9.5 s, 3 units",
        ] {
            assert!(report.contains(line), "{line} in\n{report}");
        }
    }
}
