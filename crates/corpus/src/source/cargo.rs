//! Sources and documentation of the locked dependencies of a Cargo workspace.
//!
//! `cargo metadata --offline --locked` names the packages; the folder of each package's manifest is read. The
//! registry folder is never listed, because it holds other projects' crates, and vendored crates are found where
//! they are. Identity is (name, version, relative path, size): the lock file's checksums pin the contents, so
//! the corpus is the same on every machine.

use super::folder::{Files, Filter, Member, list};
use super::{Listing, SourceInfo};
use crate::error::{Error, Result};
use serde::Deserialize;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// Extensions that are read when the configuration names none.
const EXTENSIONS: &[&str] = &["rs", "md", "c", "h"];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    target_directory: PathBuf,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    /// Absent for packages of the workspace and other path dependencies.
    source: Option<String>,
    license: Option<String>,
    license_file: Option<String>,
    manifest_path: PathBuf,
}

/// What to list.
pub(crate) struct Options<'a> {
    pub(crate) workspace: &'a Path,
    /// Include packages without a registry or git source.
    pub(crate) members: bool,
    /// Target triple, empty for the host's.
    pub(crate) target: &'a str,
    pub(crate) extensions: &'a [String],
    pub(crate) exclude: &'a [String],
    pub(crate) max_bytes: u64,
}

fn run(workspace: &Path, arguments: &[&str]) -> Result<Vec<u8>> {
    let fail = |problem: String, hint| Error::Cargo { workspace: workspace.to_path_buf(), problem, hint };
    let output = Command::new("cargo").args(arguments).current_dir(workspace).output().map_err(|cause| {
        fail(
            format!("cargo could not be started: {cause}"),
            "install Rust, or set corpus.path to a folder of text, or corpus.source = \"embedded\"",
        )
    })?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        let lines: Vec<&str> =
            message.lines().map(str::trim).filter(|line| !line.is_empty()).take(6).collect();
        return Err(fail(
            format!("`cargo {}` said: {}", arguments.join(" "), lines.join(" ")),
            "run `cargo fetch` in that folder once, which makes the lock file and downloads the sources",
        ));
    }
    Ok(output.stdout)
}

/// The triple for which cargo builds by default.
fn host(workspace: &Path) -> Result<String> {
    let output = run(workspace, &["-vV"])?;
    let text = String::from_utf8_lossy(&output);
    text.lines().find_map(|line| line.strip_prefix("host: ")).map(str::to_string).ok_or_else(|| {
        Error::Cargo {
            workspace: workspace.to_path_buf(),
            problem: "`cargo -vV` names no host".into(),
            hint: "set corpus.target to the target triple",
        }
    })
}

/// Lists the packages and their files.
pub(crate) fn open(options: &Options<'_>) -> Result<Files> {
    let workspace = options.workspace;
    if !workspace.join("Cargo.toml").is_file() {
        return Err(Error::Cargo {
            workspace: workspace.to_path_buf(),
            problem: "there is no Cargo.toml".into(),
            hint: "run in a Cargo workspace or set corpus.path to one",
        });
    }
    let target = if options.target.is_empty() { host(workspace)? } else { options.target.to_string() };
    let arguments =
        ["metadata", "--offline", "--locked", "--format-version", "1", "--filter-platform", &target];
    let output = run(workspace, &arguments)?;
    let metadata: Metadata = serde_json::from_slice(&output).map_err(|cause| Error::Cargo {
        workspace: workspace.to_path_buf(),
        problem: format!("the answer of `cargo metadata` is not understood: {cause}"),
        hint: "check the version of cargo",
    })?;

    let mut packages = metadata.packages;
    let all_roots: HashSet<PathBuf> = packages.iter().filter_map(|package| root_of(package).ok()).collect();
    packages.retain(|package| package.source.is_some() || options.members);
    packages.sort_by(|a, b| (&a.name, &a.version, &a.source).cmp(&(&b.name, &b.version, &b.source)));

    let mut listing = Listing { kind: "cargo", ..Listing::default() };
    let mut members = Vec::new();
    for package in &packages {
        let root = root_of(package)?;
        let mut filter = Filter::new(options.extensions, &[EXTENSIONS], options.exclude);
        // A workspace's root package holds the others and the build folder; each package is read once.
        filter.exclude_folders = all_roots.iter().filter(|other| **other != root).cloned().collect();
        filter.exclude_folders.insert(metadata.target_directory.clone());
        if package.source.is_some() {
            filter.exclude_folders.retain(|folder| folder.starts_with(&root));
        }
        let (files, skipped) = list(&root, &filter)?;
        listing.skipped_files += skipped;
        listing.sources.push(SourceInfo {
            name: package.name.clone(),
            version: Some(package.version.clone()),
            licence: package
                .license
                .clone()
                .or_else(|| package.license_file.as_ref().map(|file| format!("see {file}"))),
        });
        listing.entries.push(format!("{} {}", package.name, package.version));
        for file in files {
            let id = format!("{}-{}/{}", package.name, package.version, file.relative);
            listing.files += 1;
            listing.bytes += file.bytes;
            // Registry sources never change under one version; the workspace's own do.
            listing.entries.push(match package.source {
                Some(_) => format!("{id} {}", file.bytes),
                None => format!("{id} {} {}", file.bytes, file.changed),
            });
            members.push(Member { file, id, source: listing.sources.len() - 1 });
        }
    }
    let description =
        format!("{} locked dependencies of the workspace in {}", packages.len(), workspace.display());
    Ok(Files { description, listing, members: Arc::new(members), max_bytes: options.max_bytes, pages: false })
}

fn root_of(package: &Package) -> Result<PathBuf> {
    let parent = package.manifest_path.parent().unwrap_or(Path::new("/"));
    std::fs::canonicalize(parent).map_err(Error::io("read the package folder", parent))
}
