//! Python's standard library: text for a first run on a machine with Python and without cargo.
//!
//! The folder is the one that `python3` names. Installed packages (`site-packages`) belong to the user and are not read.
//! A source is a module, or a module or package of a package (`json/decoder`), so that the split holds it out whole. Identity is
//! (Python's version, relative path, size).

use super::folder::{Files, Filter, Member, Reading, list};
use super::{Listing, SourceInfo};
use crate::error::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

/// Prints the version and the folder of the standard library, a line each.
const QUESTION: &str =
    "import sys, sysconfig; print('%d.%d.%d' % sys.version_info[:3]); print(sysconfig.get_path('stdlib'))";
/// Folders that are not part of the standard library, or hold tables.
const EXCLUDED: [&str; 6] =
    ["site-packages", "dist-packages", "__pycache__", "lib-dynload", "encodings", "pydoc_data"];
/// Licence of the standard library, as SPDX names it.
const LICENCE: &str = "PSF-2.0";

/// Version of `python3` and folder of its standard library, if it can be started.
fn standard_library() -> Option<(String, PathBuf)> {
    // Isolated: neither the environment nor the current folder changes the answer.
    let asked =
        Command::new("python3").args(["-I", "-S", "-c", QUESTION]).stdin(Stdio::null()).output().ok()?;
    let answer = String::from_utf8(asked.stdout).ok().filter(|_| asked.status.success())?;
    let (version, folder) = answer.trim_end().split_once('\n')?;
    Some((version.to_owned(), PathBuf::from(folder)))
}

/// Lists the standard library of `python3`; `None` without one.
///
/// # Errors
/// The folder cannot be listed.
pub(crate) fn open(max_bytes: u64) -> Result<Option<Files>> {
    standard_library().map(|(version, folder)| read(&version, &folder, max_bytes)).transpose()
}

fn read(version: &str, folder: &Path, max_bytes: u64) -> Result<Files> {
    let root = std::fs::canonicalize(folder).map_err(Error::io("read folder", folder))?;
    let exclude = EXCLUDED.map(str::to_owned);
    let filter = Filter::new(&[], &[&["py"]], &exclude);
    let (files, skipped) = list(&root, &filter)?;
    let mut listing = Listing { kind: "python", skipped, ..Listing::default() };
    let mut members: Vec<Member> = Vec::new();
    for file in files {
        let below = file.relative.strip_suffix(".py").unwrap_or(&file.relative);
        let end = below.match_indices('/').nth(1).map_or(below.len(), |(at, _)| at);
        let name = &below[..end];
        if listing.sources.last().is_none_or(|source| source.name != name) {
            let (version, licence) = (Some(version.to_owned()), Some(LICENCE.to_owned()));
            listing.sources.push(SourceInfo { name: name.to_owned(), version, licence });
        }
        let id = format!("python-{version}/{}", file.relative);
        listing.entries.push(format!("{id} {}", file.bytes));
        listing.add(file.bytes);
        members.push(Member { file, id, source: listing.sources.len() - 1 });
    }
    Ok(Files {
        description: format!("the standard library of Python {version} in {}", root.display()),
        listing,
        members: Arc::new(members),
        reading: Reading::plain(max_bytes),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn modules_and_packages_are_sources_and_installed_packages_are_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let modules =
            ["abc.py", "json/__init__.py", "json/tool.py", "xml/dom/minidom.py", "xml/dom/pulldom.py"];
        for path in modules.iter().chain(&["site-packages/x.py", "encodings/big5.py", "LICENSE.txt"]) {
            let file = folder.path().join(path);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "pass\n").unwrap();
        }
        let found = read("3.11.2", folder.path(), 1 << 20).unwrap();
        let ids: Vec<(&str, usize)> = found.members.iter().map(|m| (m.id.as_str(), m.source)).collect();
        let expected = [
            ("python-3.11.2/abc.py", 0),
            ("python-3.11.2/json/__init__.py", 1),
            ("python-3.11.2/json/tool.py", 2),
            ("python-3.11.2/xml/dom/minidom.py", 3),
            ("python-3.11.2/xml/dom/pulldom.py", 3),
        ];
        assert_eq!(ids, expected);
        let names: Vec<&str> = found.listing.sources.iter().map(|source| source.name.as_str()).collect();
        assert_eq!(names, ["abc", "json/__init__", "json/tool", "xml/dom"]);
    }
}
