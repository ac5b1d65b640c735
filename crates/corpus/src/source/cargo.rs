//! Sources and documentation of the locked dependencies of a Cargo workspace.
//!
//! The packages are the normal and build dependencies of the workspace's default members for one target, as
//! `cargo tree --edges normal,build --offline --locked` lists them. Those are the packages that `cargo build` has
//! downloaded, so the list needs no network and is the same on every machine of that target. `cargo metadata` would
//! want dev-dependencies and the crates of other members too, which a build never downloads.
//!
//! The source of a crates.io package lies in `CARGO_HOME/registry/src/REGISTRY/NAME-VERSION`. The registry folder is
//! never listed, because it holds other projects' crates. Vendored packages, git packages and those of other
//! registries are located by `cargo metadata`. Identity is (name, version, relative path, size): the lock file's
//! checksums pin the contents, so the corpus is the same on every machine.

use super::folder::{Files, Filter, Member, Reading, list};
use super::{Listing, SourceInfo};
use crate::error::{Error, Result};
use serde::Deserialize;
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Extensions that are read when the configuration names none.
const EXTENSIONS: &[&str] = &["rs", "md", "c", "h"];
/// Beginning of the names of the registry folders of crates.io.
const CRATES_IO: &str = "index.crates.io-";

/// The part of `cargo metadata`'s answer that is read here.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<MetadataPackage>,
    target_directory: PathBuf,
    workspace_root: PathBuf,
}

#[derive(Deserialize)]
struct MetadataPackage {
    name: String,
    version: String,
    license: Option<String>,
    license_file: Option<String>,
    manifest_path: PathBuf,
}

/// Origin of a package.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Origin {
    CratesIo,
    /// A git repository or another registry, as cargo names it.
    Other(String),
    /// A folder: a member of the workspace or another path dependency.
    Folder(PathBuf),
}

/// A package of the resolved dependencies. The order of the fields is the order of the corpus.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Package {
    name: String,
    version: String,
    origin: Origin,
    licence: Option<String>,
}

/// Options of the listing.
pub(crate) struct Options<'a> {
    pub(crate) workspace: &'a Path,
    /// Cargo's home folder, where downloaded crates are unpacked; empty if it is not known.
    pub(crate) home: &'a Path,
    /// Include packages without a registry or git source.
    pub(crate) members: bool,
    /// Target triple, empty for the host's.
    pub(crate) target: &'a str,
    pub(crate) extensions: &'a [String],
    pub(crate) exclude: &'a [String],
    pub(crate) max_bytes: u64,
    /// Follow links that lead out of a package.
    pub(crate) follow_links: bool,
}

/// Cargo, run in the folder of a workspace.
struct Cargo<'a> {
    workspace: &'a Path,
}

impl Cargo<'_> {
    fn error(&self, problem: String, hint: &'static str) -> Error {
        Error::Cargo { workspace: self.workspace.to_path_buf(), problem, hint }
    }

    fn run(&self, arguments: &[&str]) -> Result<String> {
        let output =
            Command::new("cargo").args(arguments).current_dir(self.workspace).output().map_err(|cause| {
                let hint =
                    "install Rust, or set corpus.path to a folder of text, or corpus.source = \"embedded\"";
                self.error(format!("cargo could not be started: {cause}"), hint)
            })?;
        if !output.status.success() {
            let message = String::from_utf8_lossy(&output.stderr);
            let lines: Vec<&str> =
                message.lines().map(str::trim).filter(|line| !line.is_empty()).take(6).collect();
            return Err(self.error(
                format!("`cargo {}` failed: {}", arguments.join(" "), lines.join(" ")),
                "run `cargo fetch` in that folder once, which makes the lock file and downloads the sources",
            ));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn metadata(&self, arguments: &[&str]) -> Result<Metadata> {
        let all = [&["metadata", "--offline", "--locked", "--format-version", "1"], arguments].concat();
        serde_json::from_str(&self.run(&all)?).map_err(|cause| {
            self.error(
                format!("cannot parse the output of `cargo metadata`: {cause}"),
                "check the version of cargo",
            )
        })
    }

    /// The triple for which cargo builds by default.
    fn host(&self) -> Result<String> {
        let text = self.run(&["-vV"])?;
        text.lines().find_map(|line| line.strip_prefix("host: ")).map(str::to_string).ok_or_else(|| {
            self.error("`cargo -vV` printed no host triple".into(), "set corpus.target to the target triple")
        })
    }

    /// The packages that a build of the default members for `target` compiles, each once, in the order of the corpus.
    fn packages(&self, target: &str) -> Result<Vec<Package>> {
        let text = self.run(&[
            "tree",
            "--offline",
            "--locked",
            "--edges",
            "normal,build",
            "--target",
            target,
            "--prefix",
            "none",
            "--format",
            "{p}\t{l}",
        ])?;
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        let packages: Option<Vec<Package>> = lines.map(package).collect();
        let mut packages = packages.ok_or_else(|| {
            let hint = "check the version of cargo";
            self.error("cannot parse the output of `cargo tree`".into(), hint)
        })?;
        packages.sort();
        packages.dedup();
        Ok(packages)
    }
}

/// A line of `cargo tree`: `NAME vVERSION (ORIGIN) (proc-macro)`, a tab, the licence, and ` (*)` if the package was
/// listed before.
fn package(line: &str) -> Option<Package> {
    let (id, licence) = line.strip_suffix(" (*)").unwrap_or(line).split_once('\t')?;
    let (name, rest) = id.split_once(" v")?;
    let rest = rest.strip_suffix(" (proc-macro)").unwrap_or(rest);
    let (version, origin) = match rest.split_once(' ') {
        None => (rest, Origin::CratesIo),
        Some((version, origin)) => {
            let origin = origin.strip_prefix('(')?.strip_suffix(')')?;
            let folder = Path::new(origin);
            (
                version,
                if folder.is_absolute() {
                    Origin::Folder(folder.into())
                } else {
                    Origin::Other(origin.into())
                },
            )
        }
    };
    let licence = Some(licence.trim()).filter(|licence| !licence.is_empty()).map(str::to_string);
    Some(Package { name: name.into(), version: version.into(), origin, licence })
}

/// Folders of the registries below cargo's home, that of crates.io first.
fn registries(home: &Path) -> Vec<PathBuf> {
    // Without a home, or before the first download, there are none.
    let entries = if home.as_os_str().is_empty() { None } else { home.join("registry/src").read_dir().ok() };
    let mut folders: Vec<PathBuf> =
        entries.into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    let of_crates_io =
        |folder: &Path| folder.file_name().is_some_and(|name| name.to_string_lossy().starts_with(CRATES_IO));
    folders.sort_by_key(|folder| (!of_crates_io(folder), folder.clone()));
    folders
}

/// The folder of each package, in the order of `packages`.
fn folders(
    cargo: &Cargo<'_>,
    packages: &mut [Package],
    options: &Options<'_>,
    target: &str,
) -> Result<Vec<PathBuf>> {
    let registries = registries(options.home);
    let in_registry = |package: &Package| {
        let name = format!("{}-{}", package.name, package.version);
        registries
            .iter()
            .map(|registry| registry.join(&name))
            .find(|folder| folder.join("Cargo.toml").is_file())
    };
    let found: Vec<Option<PathBuf>> = packages
        .iter()
        .map(|package| match &package.origin {
            Origin::Folder(folder) => Some(folder.clone()),
            Origin::CratesIo => in_registry(package),
            Origin::Other(_) => None,
        })
        .collect();
    let mut located: BTreeMap<(String, String), MetadataPackage> = BTreeMap::new();
    if found.iter().any(Option::is_none) {
        let metadata = cargo.metadata(&["--filter-platform", target])?;
        located.extend(
            metadata.packages.into_iter().map(|found| ((found.name.clone(), found.version.clone()), found)),
        );
    }
    let mut folders = Vec::with_capacity(packages.len());
    for (package, found) in packages.iter_mut().zip(found) {
        let other = located.get(&(package.name.clone(), package.version.clone()));
        let folder = match (found, other) {
            (Some(folder), _) => folder,
            (None, Some(other)) => other.manifest_path.parent().unwrap_or(Path::new("/")).to_path_buf(),
            (None, None) => {
                return Err(cargo.error(
                    format!(
                        "the source of {} {} is neither in {} nor in the output of cargo",
                        package.name,
                        package.version,
                        options.home.join("registry/src").display()
                    ),
                    "run `cargo fetch` in that folder once, which downloads the sources",
                ));
            }
        };
        if package.licence.is_none() {
            package.licence = licence_file(&folder);
        }
        folders.push(std::fs::canonicalize(&folder).map_err(Error::io("read the package folder", &folder))?);
    }
    Ok(folders)
}

/// The licence of a package that names a file instead of an expression. Published manifests are written by cargo, one
/// key a line.
fn licence_file(folder: &Path) -> Option<String> {
    let manifest = bessemer_durable::read_to_string(&folder.join("Cargo.toml")).ok()?;
    let value = manifest
        .lines()
        .find_map(|line| line.strip_prefix("license-file")?.trim_start().strip_prefix('='))?;
    Some(format!("see {}", value.trim().trim_matches('"')))
}

/// Lists the packages and their files.
pub(crate) fn open(options: &Options<'_>) -> Result<Files> {
    let cargo = Cargo { workspace: options.workspace };
    if !options.workspace.join("Cargo.toml").is_file() {
        return Err(cargo
            .error("there is no Cargo.toml".into(), "run in a Cargo workspace or set corpus.path to one"));
    }
    let workspace = cargo.metadata(&["--no-deps"])?;
    let cargo = Cargo { workspace: &workspace.workspace_root };
    let target = if options.target.is_empty() { cargo.host()? } else { options.target.to_string() };
    let mut packages = cargo.packages(&target)?;
    if options.members {
        packages.extend(workspace.packages.into_iter().map(|package| Package {
            name: package.name,
            version: package.version,
            origin: Origin::Folder(package.manifest_path.parent().unwrap_or(Path::new("/")).to_path_buf()),
            licence: package.license.or(package.license_file.map(|file| format!("see {file}"))),
        }));
        packages.sort();
        packages.dedup_by(|a, b| (&a.name, &a.version, &a.origin) == (&b.name, &b.version, &b.origin));
    } else {
        packages.retain(|package| !matches!(package.origin, Origin::Folder(_)));
    }
    let roots = folders(&cargo, &mut packages, options, &target)?;

    let own = |package: &Package| matches!(package.origin, Origin::Folder(_));
    let mut listing = Listing { kind: "cargo", ..Listing::default() };
    let mut members = Vec::new();
    for (package, root) in packages.iter().zip(&roots) {
        let mut filter = Filter::new(options.extensions, &[EXTENSIONS], options.exclude);
        filter.follow_links = options.follow_links;
        if own(package) {
            // A workspace's root package holds the others and the build folder; each package is read once.
            filter.exclude_folders =
                roots.iter().filter(|other| *other != root).cloned().collect::<HashSet<_>>();
            filter.exclude_folders.insert(workspace.target_directory.clone());
        }
        let (files, skipped) = list(root, &filter)?;
        listing.skipped.merge(&skipped);
        listing.sources.push(SourceInfo {
            name: package.name.clone(),
            version: Some(package.version.clone()),
            licence: package.licence.clone(),
        });
        listing.entries.push(format!("{} {}", package.name, package.version));
        for file in files {
            let id = format!("{}-{}/{}", package.name, package.version, file.relative);
            // Registry sources never change under one version; the workspace's own do.
            listing.entries.push(match own(package) {
                false => format!("{id} {}", file.bytes),
                true => format!("{id} {} {}", file.bytes, file.changed),
            });
            listing.add(file.bytes);
            members.push(Member { file, id, source: listing.sources.len() - 1 });
        }
    }
    let description = format!(
        "{} normal and build dependencies of the workspace in {}",
        packages.len(),
        options.workspace.display()
    );
    Ok(Files { description, listing, members: Arc::new(members), reading: Reading::plain(options.max_bytes) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_cargo_tree_are_understood() {
        let read = |line| package(line).map(|p| (p.name, p.version, p.origin, p.licence));
        let expected = |name: &str, version: &str, origin, licence: Option<&str>| {
            Some((name.to_string(), version.to_string(), origin, licence.map(str::to_string)))
        };
        assert_eq!(
            read("encoding_rs v0.8.44\t(Apache-2.0 OR MIT) AND BSD-3-Clause (*)"),
            expected("encoding_rs", "0.8.44", Origin::CratesIo, Some("(Apache-2.0 OR MIT) AND BSD-3-Clause"))
        );
        assert_eq!(
            read("serde_derive v1.0.229 (proc-macro)\t"),
            expected("serde_derive", "1.0.229", Origin::CratesIo, None)
        );
        assert_eq!(
            read("own v0.1.0 (/a folder/own (1))\tMIT"),
            expected("own", "0.1.0", Origin::Folder("/a folder/own (1)".into()), Some("MIT"))
        );
        assert_eq!(
            read("forked v2.0.0+build (https://example.com/f.git?rev=1#0123abcd) (proc-macro)\tMIT"),
            expected(
                "forked",
                "2.0.0+build",
                Origin::Other("https://example.com/f.git?rev=1#0123abcd".into()),
                Some("MIT")
            )
        );
        assert_eq!(read("no version here"), None);
    }
}
