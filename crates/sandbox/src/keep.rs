//! The keeper: the process that confines itself and starts the command.

use crate::{Confined, READ_ONLY, SandboxError};
use rustix::fs::{Gid, OFlags, StatVfsMountFlags, Uid, fcntl_getfl, fcntl_setfl, statvfs};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, mount_remount, unmount,
};
use rustix::process::{Resource, Rlimit, getgid, getuid, pivot_root, setrlimit};
use rustix::thread::{
    UnshareFlags, set_no_new_privs, set_thread_gid, set_thread_groups, set_thread_uid, unshare_unsafe,
};
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Where the working directory lies below the new root.
const WORK: &str = "/work";
/// Exit code of a keeper whose command could not be started or confined.
pub const NOT_CONFINED: u8 = 125;

/// Confines this process and runs the command; the exit code that this process should end with: the command's, or 128 and the number of the signal that ended it. Must be called by a
/// process with one thread.
///
/// # Errors
/// A kernel without user namespaces, directories that cannot be mounted, a command that is not there.
pub fn keep(confined: &Confined) -> Result<u8, SandboxError> {
    let step = |wanted: &'static str, hint: &'static str| {
        move |cause: rustix::io::Errno| SandboxError::Refused { wanted, cause: cause.into(), hint }
    };
    let plain = |wanted: &'static str| step(wanted, "this host cannot confine programs");
    set_no_new_privs(true).map_err(plain("no_new_privs"))?;
    let root = getuid().is_root();
    let (uid, gid) = (getuid(), getgid());
    let mut own = UnshareFlags::NEWPID
        | UnshareFlags::NEWNET
        | UnshareFlags::NEWNS
        | UnshareFlags::NEWUTS
        | UnshareFlags::NEWIPC;
    // Others may do all this only in a user namespace of their own.
    if !root {
        own |= UnshareFlags::NEWUSER;
    }
    // SAFETY: the flags do not have FILES, the only one whose effect on other threads is unsound.
    #[allow(unsafe_code, reason = "one flag of this call is unsound, and it is not given")]
    let unshared = unsafe { unshare_unsafe(own) };
    unshared.map_err(step(
        "namespaces of its own (user, processes, network, mounts)",
        "allow user namespaces: sysctl kernel.unprivileged_userns_clone=1, kernel.apparmor_restrict_unprivileged_userns=0, or run the container with them",
    ))?;
    if !root {
        map_user(uid, gid).map_err(|cause| SandboxError::Refused {
            wanted: "a user of its own",
            cause,
            hint: "this host cannot confine programs",
        })?;
    }
    let shown = Shown::open(confined)?;
    let owner = shown
        .work
        .metadata()
        .map_err(|cause| SandboxError::Start { what: "the working directory".into(), cause })?
        .uid();
    if owner == 0 {
        let cause = io::Error::other("it belongs to root, and no command is run as root; change its owner");
        return Err(SandboxError::Start { what: confined.directory.display().to_string(), cause });
    }
    new_root(&shown)?;
    if root {
        let other = |cause: rustix::io::Errno| plain("another user than root")(cause);
        set_thread_groups(&[]).map_err(other)?;
        set_thread_gid(Gid::from_raw(owner)).map_err(other)?;
        set_thread_uid(Uid::from_raw(owner)).map_err(other)?;
    }
    limit(confined)?;
    let mut command = Command::new(&confined.command[0]);
    command.args(&confined.command[1..]).current_dir(WORK).env_clear().stdin(Stdio::null());
    command.env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", WORK).env("LANG", "C.UTF-8");
    let started = |cause| SandboxError::Start { what: confined.command[0].clone(), cause };
    let status = wait(&mut command.spawn().map_err(started)?, confined.limits.seconds).map_err(started)?;
    Ok(match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, signal) => (128 + signal.unwrap_or(0)) as u8,
    })
}

/// Waits for the command. Killed is it when the time is over, or when standard input ends: then the one that waits for this process wants no more, or is
/// dead. A command cannot escape that: it is the first process of its namespace, with which all others die.
fn wait(child: &mut Child, seconds: f64) -> io::Result<ExitStatus> {
    let deadline = Instant::now() + Duration::from_secs_f64(seconds + 1.0);
    let input = io::stdin();
    fcntl_setfl(&input, fcntl_getfl(&input)? | OFlags::NONBLOCK)?;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        let ended = matches!(input.lock().read(&mut [0; 1]), Ok(0));
        if ended || Instant::now() > deadline {
            child.kill()?;
            return child.wait();
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The user keeps its number inside, without which its files would belong to nobody.
fn map_user(uid: Uid, gid: Gid) -> io::Result<()> {
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{0} {0} 1", uid.as_raw()))?;
    fs::write("/proc/self/gid_map", format!("{0} {0} 1", gid.as_raw()))
}

/// Directories that the command sees, opened before the new root hides what lies below /tmp, and in the namespace that mounts them.
struct Shown {
    work: fs::File,
    /// Directories that may be read, and their paths.
    read_only: Vec<(PathBuf, fs::File)>,
}

impl Shown {
    fn open(confined: &Confined) -> Result<Shown, SandboxError> {
        let failed = |path: &Path| {
            let what = path.display().to_string();
            move |cause: io::Error| SandboxError::Start { what, cause }
        };
        let work = fs::File::open(&confined.directory).map_err(failed(&confined.directory))?;
        let mut read_only = Vec::new();
        for path in READ_ONLY.iter().map(Path::new) {
            // A host need not have all of them, and /bin may be a link to what another one shows.
            if let Ok(file) = fs::File::open(path) {
                read_only.push((path.to_owned(), file));
            }
        }
        for path in &confined.read_only {
            read_only.push((path.clone(), fs::File::open(path).map_err(failed(path))?));
        }
        Ok(Shown { work, read_only })
    }
}

/// A root of its own in memory with the directories that may be read, the working directory, and the devices that programs expect.
fn new_root(shown: &Shown) -> Result<(), SandboxError> {
    let step = |wanted: &'static str| {
        move |cause: io::Error| SandboxError::Refused {
            wanted,
            cause,
            hint: "this host cannot confine programs",
        }
    };
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    mount_change("/", private).map_err(|e| step("private mounts")(e.into()))?;
    // Any directory serves; what was below it is hidden from this process alone.
    let root = Path::new("/tmp");
    let in_memory = MountFlags::NOSUID | MountFlags::NODEV;
    mount("tmpfs", root, "tmpfs", in_memory, Some(c"size=1m,mode=755"))
        .map_err(|e| step("a root in memory")(e.into()))?;
    let mut made: Vec<PathBuf> = Vec::new();
    for (path, file) in &shown.read_only {
        if made.iter().any(|above| path.starts_with(above)) {
            continue;
        }
        bind(file, root, path, true).map_err(step("the directories that may be read"))?;
        made.push(path.clone());
    }
    for device in ["/dev/null", "/dev/zero", "/dev/urandom"] {
        let file = fs::File::open(device).map_err(step("devices"))?;
        bind(&file, root, Path::new(device), false).map_err(step("devices"))?;
    }
    bind(&shown.work, root, Path::new(WORK), false).map_err(step("the working directory"))?;
    let old = root.join("old");
    fs::create_dir(&old).map_err(step("a place for the old root"))?;
    pivot_root(root, &old).map_err(|e| step("its own root")(e.into()))?;
    std::env::set_current_dir("/").map_err(step("its own root"))?;
    unmount("/old", UnmountFlags::DETACH).map_err(|e| step("to leave the old root")(e.into()))?;
    fs::remove_dir("/old").map_err(step("to leave the old root"))?;
    let flags = MountFlags::RDONLY | MountFlags::BIND | in_memory;
    mount_remount("/", flags, c"").map_err(|e| step("a read-only root")(e.into()))
}

/// Shows an opened directory or file at the same path below the new root.
fn bind(file: &fs::File, root: &Path, path: &Path, read_only: bool) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let target = root.join(path.strip_prefix("/").unwrap_or(path));
    if file.metadata()?.is_dir() {
        fs::create_dir_all(&target)?;
    } else {
        fs::create_dir_all(target.parent().unwrap_or(root))?;
        fs::File::create(&target)?;
    }
    let source = format!("/proc/self/fd/{}", file.as_raw_fd());
    mount_bind(source.as_str(), &target)?;
    // In a user namespace flags of the host's mount can be added to, not taken away.
    let kept = statvfs(&target)?.f_flag;
    let same = [
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ];
    let mut flags = MountFlags::BIND | MountFlags::NOSUID;
    for (flag, also) in same {
        if kept.contains(flag) {
            flags |= also;
        }
    }
    if read_only {
        flags |= MountFlags::RDONLY | MountFlags::NODEV;
    }
    Ok(mount_remount(&target, flags, c"")?)
}

fn limit(confined: &Confined) -> Result<(), SandboxError> {
    let limits = &confined.limits;
    let seconds = limits.seconds.ceil() as u64 + 1;
    let all = [
        (Resource::As, limits.memory),
        (Resource::Cpu, seconds),
        (Resource::Nproc, limits.processes),
        (Resource::Fsize, limits.file_bytes),
        (Resource::Nofile, 64),
        (Resource::Core, 0),
    ];
    for (resource, most) in all {
        let rlimit = Rlimit { current: Some(most), maximum: Some(most) };
        setrlimit(resource, rlimit).map_err(|cause| SandboxError::Refused {
            wanted: "limits of memory, time, processes and files",
            cause: cause.into(),
            hint: "ask for no more than this process may use itself (ulimit -a)",
        })?;
    }
    Ok(())
}
