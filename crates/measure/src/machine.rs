//! Facts about this machine and process, from /proc where there is one.

use bessemer_durable::read_system;
use bessemer_kernels_cpu::{cpu_list, memory};
use bessemer_plan::Cores;
use bessemer_units::Bytes;
use std::collections::HashSet;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Resident memory of this process.
pub fn resident_bytes() -> Option<u64> {
    status_kib("/proc/self/status", "VmRSS:")
}

/// Largest resident memory that this process has had.
pub fn peak_resident_bytes() -> Option<u64> {
    status_kib("/proc/self/status", "VmHWM:")
}

/// Memory that this process can take now.
pub fn available_memory() -> Bytes {
    Bytes(memory::available().bytes)
}

/// Name of this machine in its network; empty if the system does not tell.
pub fn hostname() -> String {
    read_system("/proc/sys/kernel/hostname").trim().to_owned()
}

/// "AMD EPYC" or whatever the system calls its processor.
pub fn processor() -> String {
    let info = read_system("/proc/cpuinfo");
    let name = info
        .lines()
        .find_map(|l| l.strip_prefix("model name")?.split_once(':').map(|x| x.1.trim().to_owned()));
    name.unwrap_or_else(|| std::env::consts::ARCH.to_owned())
}

/// Instruction sets that matter for speed, as the system names them, of those that this processor has.
pub fn features() -> Vec<&'static str> {
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
    let info = read_system("/proc/cpuinfo");
    let line = info.lines().find(|l| l.starts_with("flags") || l.starts_with("Features")).unwrap_or_default();
    let has: HashSet<&str> = line.split_whitespace().collect();
    KNOWN.into_iter().filter(|f| has.contains(f)).collect()
}

/// Threads to use where 0 means all cores that this process may use. Far more than the cores are of no use, and starting
/// them can take minutes: such a number, from a recipe of a larger machine, means all cores too.
pub fn threads(wanted: u64) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    match usize::try_from(wanted) {
        Ok(n) if n > 0 && n <= (4 * cores).max(16) => n,
        _ => cores,
    }
}

/// Sockets, memory nodes and cores, of the cores that this process may use; one node where the system does not tell.
pub fn cores() -> Cores {
    let nodes = cpu_list(&read_system("/sys/devices/system/node/online")).map(|all| all.len());
    let cpus = bessemer_durable::list(Path::new("/sys/devices/system/cpu")).unwrap_or_default().into_iter();
    let packages = cpus
        .map(|cpu| read_system(cpu.join("topology/physical_package_id")))
        .filter(|package| !package.is_empty());
    let sockets = packages.collect::<HashSet<String>>().len().max(1);
    let nodes = (nodes.unwrap_or(1) / sockets).max(1);
    Cores { sockets, nodes, cores: (threads(0) / (sockets * nodes)).max(1) }
}

/// Today's date in UTC, as 2026-01-31.
pub fn today() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    bessemer_runlog::rfc3339(now).chars().take_while(|c| *c != 'T').collect()
}

/// Whether this process may run on some of the machine's processors only, because its launcher or its user chose them.
pub fn is_bound() -> bool {
    let status = read_system("/proc/self/status");
    let allowed = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).and_then(cpu_list);
    let online = cpu_list(&read_system("/sys/devices/system/cpu/online"));
    matches!((allowed, online), (Some(allowed), Some(online)) if allowed.len() < online.len())
}

fn status_kib(path: &str, key: &str) -> Option<u64> {
    let text = read_system(path);
    let line = text.lines().find_map(|l| l.strip_prefix(key))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    #[test]
    fn threads_of_a_larger_machine_are_all_cores_of_this_one() {
        let cores = super::threads(0);
        assert!(cores >= 1);
        assert_eq!((super::threads(1), super::threads(3)), (1, 3));
        assert_eq!(super::threads(u64::MAX), cores);
        if 4 * cores < 4096 {
            assert_eq!(super::threads(4096), cores);
        }
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
