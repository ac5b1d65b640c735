//! The Git commit of a directory, read from Git's files: no program is started.

use std::io::Read;
use std::path::{Path, PathBuf};

/// Longest file of Git that is read: packed references of very large repositories stay below it.
const LONGEST: u64 = 16 << 20;

/// Returns the commit that the repository around `directory` has checked out; `None` outside of repositories and before the
/// first commit. Changes that are not committed are not seen.
pub(crate) fn commit(directory: &Path) -> Option<String> {
    let git = directory.ancestors().find_map(git_directory)?;
    let head = text(&git.join("HEAD"))?;
    let Some(name) = head.strip_prefix("ref:") else { return hash(&head) };
    let name = name.trim();
    // A reference is a relative path; a damaged one must not lead elsewhere.
    if !name.starts_with("refs/") || name.split('/').any(|part| part == "..") {
        return None;
    }
    // A linked working tree keeps its references in the repository that it belongs to.
    let common = match text(&git.join("commondir")) {
        Some(path) => git.join(path.trim()),
        None => git.clone(),
    };
    let loose = [&git, &common].into_iter().find_map(|at| hash(&text(&at.join(name))?));
    loose.or_else(|| {
        let packed = text(&common.join("packed-refs"))?;
        let line = packed.lines().find(|l| l.split_once(' ').is_some_and(|(_, n)| n == name))?;
        hash(line.split_once(' ')?.0)
    })
}

/// The directory of Git's files for a working tree at `tree`.
fn git_directory(tree: &Path) -> Option<PathBuf> {
    let git = tree.join(".git");
    if git.is_dir() {
        return Some(git);
    }
    // Linked working trees and submodules have a file that names the directory.
    let path = text(&git)?;
    let path = tree.join(path.strip_prefix("gitdir:")?.trim());
    path.is_dir().then_some(path)
}

/// A hash in hexadecimal digits: 40 of SHA-1, 64 of SHA-256.
fn hash(text: &str) -> Option<String> {
    let text = text.trim();
    let fits = matches!(text.len(), 40 | 64) && text.bytes().all(|b| b.is_ascii_hexdigit());
    fits.then(|| text.to_owned())
}

fn text(path: &Path) -> Option<String> {
    let mut text = String::new();
    bessemer_durable::open_regular(path).ok()?.take(LONGEST).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const A: &str = "0123456789abcdef0123456789abcdef01234567";
    const B: &str = "89abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn the_commit_is_found_by_branch_by_packed_branch_detached_and_in_linked_trees() {
        let dir = tempfile::tempdir().unwrap();
        let (tree, git) = (dir.path().join("tree/deep"), dir.path().join("tree/.git"));
        fs::create_dir_all(&tree).unwrap();
        fs::create_dir_all(git.join("refs/heads")).unwrap();
        fs::create_dir_all(git.join("worktrees/w")).unwrap();
        let head = |text: &str| fs::write(git.join("HEAD"), text).unwrap();
        head("ref: refs/heads/main\n");
        assert_eq!(commit(&tree), None, "before the first commit");
        fs::write(
            git.join("packed-refs"),
            format!("# pack-refs\n{B} refs/heads/other\n{A} refs/heads/main\n"),
        )
        .unwrap();
        assert_eq!(commit(&tree).as_deref(), Some(A));
        fs::write(git.join("refs/heads/main"), format!("{B}\n")).unwrap();
        assert_eq!(commit(&tree).as_deref(), Some(B), "a loose reference is newer than a packed one");
        head(&format!("{A}\n"));
        assert_eq!(commit(&tree).as_deref(), Some(A));
        for damaged in ["", "ref: ../../secret", "ref: refs/heads/../../x", "no hash"] {
            head(damaged);
            assert_eq!(commit(&tree), None, "{damaged:?}");
        }
        let linked = dir.path().join("linked");
        fs::create_dir(&linked).unwrap();
        fs::write(linked.join(".git"), format!("gitdir: {}\n", git.join("worktrees/w").display())).unwrap();
        fs::write(git.join("worktrees/w/HEAD"), "ref: refs/heads/main\n").unwrap();
        fs::write(git.join("worktrees/w/commondir"), "../..\n").unwrap();
        assert_eq!(commit(&linked).as_deref(), Some(B));
    }
}
