//! Memory that this process may still take: the system's free memory, bounded by the control groups that the process
//! is in and by its resource limits.
//!
//! Sources: proc(5), cgroups(7), getrlimit(2), and the kernel's documentation of control groups (version 2: `memory.max`,
//! `memory.current`, `memory.stat`; version 1: `memory.limit_in_bytes`, `memory.usage_in_bytes`).

use std::fs;
use std::path::{Component, Path, PathBuf};

/// Memory that a process may take, and its bounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Available {
    /// Bytes; `u64::MAX` where the system reports nothing.
    pub bytes: u64,
    /// Its bound.
    pub bound: Bound,
}

/// Bounds of a process's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Bound {
    /// The memory that the machine has free.
    System,
    /// The limit of the control group in this directory.
    ControlGroup(PathBuf),
    /// The resource limit on the address space (`ulimit -v`).
    AddressSpace,
    /// The resource limit on the data segment (`ulimit -d`).
    DataSegment,
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Bound::System => f.write_str("the machine's free memory"),
            Bound::ControlGroup(directory) => write!(f, "control group {}", directory.display()),
            Bound::AddressSpace => f.write_str("ulimit -v"),
            Bound::DataSegment => f.write_str("ulimit -d"),
        }
    }
}

/// Returns the memory that this process may take now.
pub fn available() -> Available {
    available_under(Path::new("/"))
}

/// [`available`] with the system's files below `root`.
fn available_under(root: &Path) -> Available {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    let (status, limits) = (read("proc/self/status"), read("proc/self/limits"));
    let system = kib(&read("proc/meminfo"), "MemAvailable:").unwrap_or(u64::MAX);
    let mut least = Available { bytes: system, bound: Bound::System };
    let mut bounded = |bytes: u64, bound: Bound| {
        if bytes < least.bytes {
            least = Available { bytes, bound };
        }
    };
    for (name, used, bound) in [
        ("Max address space", "VmSize:", Bound::AddressSpace),
        ("Max data size", "VmData:", Bound::DataSegment),
    ] {
        if let Some(limit) = soft_limit(&limits, name) {
            bounded(limit.saturating_sub(kib(&status, used).unwrap_or(0)), bound);
        }
    }
    for directory in control_groups(&read("proc/self/cgroup"), &read("proc/self/mountinfo")) {
        let below = root.join(directory.strip_prefix("/").unwrap_or(&directory));
        if let Some(bytes) = left_in_group(&below) {
            bounded(bytes, Bound::ControlGroup(directory));
        }
    }
    least
}

/// The value of a line such as `MemAvailable:   123 kB`, in bytes.
fn kib(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// The soft limit in a line of /proc/self/limits; `None` for "unlimited".
fn soft_limit(limits: &str, name: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Directories of the control groups that may bound the memory of this process: its own and all ancestors, of both versions.
fn control_groups(cgroup: &str, mountinfo: &str) -> Vec<PathBuf> {
    let mut directories = Vec::new();
    for line in cgroup.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(group)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let memory = controllers.split(',').any(|c| c == "memory");
        if !memory && !controllers.is_empty() {
            continue;
        }
        for mount in mountinfo.lines().filter_map(Mount::parse) {
            let fits = match memory {
                true => mount.kind == "cgroup" && mount.options.split(',').any(|o| o == "memory"),
                false => mount.kind == "cgroup2",
            };
            if !fits {
                continue;
            }
            // The mount may show only a part of the hierarchy, and the group may be outside of it.
            let inside = Path::new(group).strip_prefix(&mount.root).unwrap_or(Path::new(""));
            let plain = inside.components().all(|c| matches!(c, Component::Normal(_)));
            let mut directory = if plain { mount.point.join(inside) } else { mount.point.clone() };
            while directory.starts_with(&mount.point) {
                directories.push(directory.clone());
                if directory == mount.point || !directory.pop() {
                    break;
                }
            }
        }
    }
    directories
}

/// A line of /proc/self/mountinfo.
struct Mount<'a> {
    /// Directory of the file system that is mounted.
    root: PathBuf,
    point: PathBuf,
    kind: &'a str,
    options: &'a str,
}

impl Mount<'_> {
    fn parse(line: &str) -> Option<Mount<'_>> {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(3);
        let (root, point) = (left.next()?, left.next()?);
        let mut right = right.split(' ');
        let (kind, _, options) = (right.next()?, right.next()?, right.next()?);
        Some(Mount { root: unescaped(root), point: unescaped(point), kind, options })
    }
}

/// A path of mountinfo, in which blanks and backslashes are escaped as `\040` and the like.
fn unescaped(text: &str) -> PathBuf {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let digits = rest.get(at + 1..at + 4);
        match digits.and_then(|d| u8::from_str_radix(d, 8).ok()).filter(u8::is_ascii) {
            Some(byte) => {
                out.push(char::from(byte));
                rest = &rest[at + 4..];
            }
            None => {
                out.push('\\');
                rest = &rest[at + 1..];
            }
        }
    }
    out.push_str(rest);
    out.into()
}

/// Bytes that a group may still take; `None` without a limit. Page cache that the kernel can drop counts as free.
fn left_in_group(directory: &Path) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(directory.join(name)).ok();
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    let (limit, used, cache) = match number("memory.max") {
        Some(limit) => (limit, number("memory.current"), "inactive_file "),
        None => (number("memory.limit_in_bytes")?, number("memory.usage_in_bytes"), "total_inactive_file "),
    };
    // Version 1 writes the largest multiple of a page for no limit.
    if limit >= 1 << 62 {
        return None;
    }
    let stat = read("memory.stat").unwrap_or_default();
    let cached = stat.lines().find_map(|line| line.strip_prefix(cache)?.trim().parse::<u64>().ok());
    let used = used.unwrap_or(0).saturating_sub(cached.unwrap_or(0));
    Some(limit.saturating_sub(used))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// A file system root with these files.
    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in
            [("proc/meminfo", "MemFree: 1 kB\nMemAvailable:   33554432 kB\n")].iter().chain(files)
        {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    fn found(files: &[(&str, &str)]) -> (u64, Bound) {
        let Available { bytes, bound } = available_under(root(files).path());
        (bytes, bound)
    }

    const V2: (&str, &str) = (
        "proc/self/mountinfo",
        "24 1 0:22 / /proc rw - proc proc rw\n30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
    );

    #[test]
    fn without_limits_the_system_is_asked() {
        assert_eq!(found(&[]), (32 * GIB, Bound::System));
        let none = [
            V2,
            ("proc/self/cgroup", "0::/user.slice\n"),
            (
                "proc/self/limits",
                "Max address space         unlimited            unlimited            bytes\n",
            ),
            ("sys/fs/cgroup/user.slice/memory.max", "max\n"),
        ];
        assert_eq!(found(&none), (32 * GIB, Bound::System));
        assert_eq!(available_under(Path::new("/nowhere at all")).bytes, u64::MAX);
    }

    #[test]
    fn the_smallest_limit_of_all_ancestors_counts_in_version_2() {
        let files = |own: &'static str, parent: &'static str| {
            [
                V2,
                ("proc/self/cgroup", "0::/a/b/c\n"),
                ("sys/fs/cgroup/a/b/c/memory.max", own),
                ("sys/fs/cgroup/a/b/c/memory.current", "1073741824\n"),
                ("sys/fs/cgroup/a/b/c/memory.stat", "anon 5\ninactive_file 536870912\n"),
                ("sys/fs/cgroup/a/b/memory.max", "max\n"),
                ("sys/fs/cgroup/a/memory.max", parent),
                ("sys/fs/cgroup/a/memory.current", "0\n"),
            ]
        };
        let group = |path: &str| Bound::ControlGroup(PathBuf::from(path));
        // Half of the memory in use is page cache.
        let (own, parent) = ("4294967296\n", "2147483648\n");
        assert_eq!(found(&files(own, "max\n")), (4 * GIB - GIB / 2, group("/sys/fs/cgroup/a/b/c")));
        assert_eq!(found(&files(own, parent)), (2 * GIB, group("/sys/fs/cgroup/a")));
        assert_eq!(found(&files("max\n", parent)), (2 * GIB, group("/sys/fs/cgroup/a")));
        // More is used than allowed, since the limit was lowered.
        assert_eq!(found(&files("1000\n", "max\n")).0, 0);
    }

    #[test]
    fn a_container_sees_the_part_of_the_tree_that_it_was_given() {
        // The group's path is that of the host, the mount shows it as its root; the mount point has a blank in its name.
        let files = [
            ("proc/self/cgroup", "0::/docker/abc/job\n"),
            ("proc/self/mountinfo", "30 23 0:26 /docker/abc /sys\\040fs/cgroup ro - cgroup2 cgroup rw\n"),
            ("sys fs/cgroup/job/memory.max", "max\n"),
            ("sys fs/cgroup/memory.max", "1073741824\n"),
        ];
        assert_eq!(found(&files), (GIB, Bound::ControlGroup("/sys fs/cgroup".into())));
        // A group outside of the mount: only the limits that the mount shows are known.
        let outside = [("proc/self/cgroup", "0::/../../other\n"), files[1], files[3]];
        assert_eq!(found(&outside).0, GIB);
    }

    #[test]
    fn version_1_is_read_beside_an_unused_version_2() {
        let mountinfo = "31 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
                         32 30 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                         33 30 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
        let files = |limit: &'static str| {
            [
                ("proc/self/mountinfo", mountinfo),
                ("proc/self/cgroup", "9:cpu,cpuacct:/x\n4:memory:/slurm/job_7/step_0\n0::/x\n"),
                ("sys/fs/cgroup/memory/slurm/job_7/step_0/memory.limit_in_bytes", "9223372036854771712\n"),
                ("sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes", limit),
                ("sys/fs/cgroup/memory/slurm/job_7/memory.usage_in_bytes", "1073741824\n"),
                ("sys/fs/cgroup/memory/slurm/job_7/memory.stat", "cache 9\ntotal_inactive_file 0\n"),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
                ("sys/fs/cgroup/cpu,cpuacct/x/memory.limit_in_bytes", "1\n"),
            ]
        };
        let job = Bound::ControlGroup("/sys/fs/cgroup/memory/slurm/job_7".into());
        assert_eq!(found(&files("3221225472\n")), (2 * GIB, job));
        assert_eq!(found(&files("9223372036854771712\n")), (32 * GIB, Bound::System));
    }

    #[test]
    fn resource_limits_count_without_what_is_taken() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max data size             unlimited            unlimited            bytes\n\
                      Max address space         2147483648           unlimited            bytes\n";
        let files =
            [("proc/self/limits", limits), ("proc/self/status", "VmSize:\t 1048576 kB\nVmData:\t 10 kB\n")];
        assert_eq!(found(&files), (GIB, Bound::AddressSpace));
        let data = limits
            .replace("size             unlimited", "size             10240")
            .replace("2147483648", "unlimited");
        assert_eq!(found(&[("proc/self/limits", &data), files[1]]), (0, Bound::DataSegment));
    }
}
