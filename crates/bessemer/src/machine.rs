//! Facts about this machine and process, from /proc where there is one.

use bessemer_units::Bytes;
use std::fs;

/// Resident memory of this process.
pub(crate) fn resident_bytes() -> Option<u64> {
    status_kib("/proc/self/status", "VmRSS:")
}

/// Largest resident memory that this process has had.
pub(crate) fn peak_resident_bytes() -> Option<u64> {
    status_kib("/proc/self/status", "VmHWM:")
}

/// Memory that a new program can take without swapping, bounded by the control group's limit if there is one.
pub(crate) fn available_memory() -> Bytes {
    let free = status_kib("/proc/meminfo", "MemAvailable:").unwrap_or(u64::MAX);
    let number = |path| fs::read_to_string(path).ok().and_then(|t| t.trim().parse::<u64>().ok());
    let group = match (number("/sys/fs/cgroup/memory.max"), number("/sys/fs/cgroup/memory.current")) {
        (Some(most), Some(used)) => most.saturating_sub(used),
        _ => u64::MAX,
    };
    Bytes(free.min(group))
}

/// Name of this machine in its network; empty if the system does not tell.
pub(crate) fn hostname() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned()
}

/// "AMD EPYC" or whatever the system calls its processor.
pub(crate) fn processor() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info
        .lines()
        .find_map(|l| l.strip_prefix("model name")?.split_once(':').map(|x| x.1.trim().to_owned()));
    name.unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// Instruction sets that matter for speed, as the system names them, of those that this processor has.
pub(crate) fn features() -> Vec<&'static str> {
    const KNOWN: [&str; 16] = [
        "avx2",
        "fma",
        "f16c",
        "avx512f",
        "avx512bw",
        "avx512dq",
        "avx512vl",
        "avx512_vnni",
        "avx512_bf16",
        "avx512_fp16",
        "amx_tile",
        "amx_bf16",
        "amx_int8",
        "asimd",
        "sve",
        "bf16",
    ];
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = info.lines().find(|l| l.starts_with("flags") || l.starts_with("Features")).unwrap_or_default();
    let has: std::collections::HashSet<&str> = line.split_whitespace().collect();
    KNOWN.into_iter().filter(|f| has.contains(f)).collect()
}

/// Threads to use where 0 means all.
pub(crate) fn threads(wanted: u64) -> usize {
    match wanted {
        0 => std::thread::available_parallelism().map_or(1, |n| n.get()),
        n => n as usize,
    }
}

/// Whether this process may run on some of the machine's processors only, because its launcher or its user chose them.
pub(crate) fn is_bound() -> bool {
    let allowed = fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|text| text.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).and_then(listed));
    let online = fs::read_to_string("/sys/devices/system/cpu/online").ok().and_then(|text| listed(&text));
    matches!((allowed, online), (Some(allowed), Some(online)) if allowed < online)
}

/// Members of a list such as "0-3,8".
fn listed(text: &str) -> Option<usize> {
    let span = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        last.checked_sub(first).map(|n| n + 1)
    };
    text.trim().split(',').map(span).sum()
}

fn status_kib(path: &str, key: &str) -> Option<u64> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix(key))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    #[test]
    fn lists_of_processors_are_counted() {
        assert_eq!(super::listed("\t0-3,8,10-11\n"), Some(7));
        assert_eq!(super::listed("0"), Some(1));
        assert_eq!(super::listed("3-1"), None);
        assert_eq!(super::listed("x"), None);
    }

    #[test]
    fn this_process_has_memory() {
        if cfg!(target_os = "linux") {
            let now = super::resident_bytes().unwrap();
            assert!(now > 1 << 16 && super::peak_resident_bytes().unwrap() >= now / 2);
            assert!(super::available_memory().0 > 1 << 20);
            let wide = bessemer_kernels_cpu::Rung::detect() >= bessemer_kernels_cpu::Rung::Avx2;
            assert_eq!(super::features().contains(&"avx2"), wide);
        }
    }
}
