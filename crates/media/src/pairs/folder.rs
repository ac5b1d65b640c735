//! A folder as a source: its files, deep, in the order of their paths.

use super::{Event, Grouper};
use crate::{Limits, MediaError, Result};
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

/// A folder of more files is not read: their names are held in memory.
const MOST_FILES: usize = 20_000_000;
const DEEPEST: usize = 64;

/// Gives the samples of a folder to `take`, as [`super::read`] does. Links are refused, names that are not UTF-8 too.
///
/// # Errors
/// [`MediaError::Io`] for a folder that cannot be listed, [`MediaError::TooLarge`], [`MediaError::Stopped`].
pub fn read_folder(
    dir: &Path,
    limits: &Limits,
    mut take: impl FnMut(Event) -> ControlFlow<()>,
) -> Result<()> {
    let mut names = Vec::new();
    let mut refused = Vec::new();
    list(dir, "", 0, &mut names, &mut refused)?;
    // By key before extension, so that `a.jpg a.txt` stand together even where `a-b.jpg` sorts between them.
    names.sort_by(|a, b| key_of(a).cmp(key_of(b)).then_with(|| a.cmp(b)));
    refused.sort();
    let mut grouper = Grouper::new(limits.file_bytes);
    let mut give = |events: Vec<Event>| match events.into_iter().try_for_each(&mut take) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(MediaError::Stopped),
    };
    for (name, reason) in refused {
        let detail = format!("{reason}: only regular files with UTF-8 names are read");
        give(vec![Event::Failed { key: name, reason, detail }])?;
    }
    for name in names {
        let path = dir.join(&name);
        let read = fs::metadata(&path).and_then(|m| {
            if m.len() > limits.file_bytes { Ok(None) } else { bessemer_durable::read(&path).map(Some) }
        });
        let events = match read {
            Ok(Some(bytes)) => grouper.push(&name, bytes),
            Ok(None) => grouper.refuse(&name, "too-large", format!("more than {} bytes", limits.file_bytes)),
            Err(e) => vec![Event::Failed { key: name, reason: "io", detail: e.to_string() }],
        };
        give(events)?;
    }
    give(grouper.finish().into_iter().collect())
}

fn key_of(name: &str) -> &str {
    let base = name.rfind('/').map_or(0, |i| i + 1);
    name[base..].find('.').map_or(name, |i| &name[..base + i])
}

fn list(
    dir: &Path,
    prefix: &str,
    depth: usize,
    names: &mut Vec<String>,
    refused: &mut Vec<(String, &'static str)>,
) -> Result<()> {
    for entry in bessemer_durable::read_dir(dir).map_err(|e| MediaError::io(dir, "list", e))? {
        let entry = entry.map_err(|e| MediaError::io(dir, "list", e))?;
        let kind = entry.file_type().map_err(|e| MediaError::io(&entry.path(), "look at", e))?;
        let shown = format!("{prefix}{}", entry.file_name().to_string_lossy());
        let Ok(base) = entry.file_name().into_string() else {
            refused.push((shown, "bad-name"));
            continue;
        };
        let name = format!("{prefix}{base}");
        if kind.is_dir() && depth < DEEPEST {
            list(&entry.path(), &format!("{name}/"), depth + 1, names, refused)?;
        } else if kind.is_file() {
            names.push(name);
        } else {
            refused.push((name, if kind.is_symlink() { "link" } else { "special-file" }));
        }
        if names.len() > MOST_FILES {
            let (limit, found) = (MOST_FILES as u64, names.len() as u64);
            return Err(MediaError::TooLarge { what: "files of a folder", limit, found });
        }
    }
    Ok(())
}
