//! `bessemer supervise`: a launcher that is started again after a crash, a hang or a lost host.
//!
//! The decisions are made in `bessemer_supervise`; this module starts processes, reads files and prints.

mod driver;
mod launches;
mod target;

use crate::cli::SuperviseArgs;
use crate::commands::run::make;
use crate::console::{Console, print};
use crate::failure::{Failure, code};
use crate::run_dir::RunDir;
use bessemer_durable::read_to_string;
use bessemer_supervise::{
    Finish, HealthServer, Hosts, Policy, ServiceManager, WatchdogSettings, launch_epoch, parse_hosts, process,
};
use driver::Supervisor;
use launches::Launches;
use std::os::unix::process::CommandExt;
use std::time::Duration;
use target::{OpenTarget, Target};

pub(crate) fn run(args: &SuperviseArgs, as_json: bool, console: &mut Console) -> Result<(), Failure> {
    if let Some(parent) = args.child_of {
        return Err(become_launcher(&args.command, parent));
    }
    let hosts = hosts(args)?;
    let target = Target::of(args, hosts.as_ref())?;
    let dir = RunDir::new(&target.run);
    make(&dir)?;
    let folder = launch_epoch::folder(dir.handle()?)?;
    let Some(_lock) = folder.try_lock("lock")? else {
        return Err(Failure::new(format!(
            "another supervisor is using {}; stop it first",
            dir.root().display()
        )));
    };
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let manager = match variable("NOTIFY_SOCKET") {
        Some(socket) => Some(
            ServiceManager::new(&socket, variable("WATCHDOG_USEC").as_deref())
                .map_err(|e| Failure::new(format!("NOTIFY_SOCKET is {socket:?}: {e}; unset it")))?,
        ),
        None => None,
    };
    let health = args.health_address.as_deref().map(HealthServer::start).transpose()?;
    if let Some(health) = &health {
        console.say(&format!("http://{}/healthz and /metrics", health.address()));
    }
    process::become_reaper()?;
    let policy = Policy {
        restarts_without_progress: args.restarts,
        first_delay: Duration::from_secs_f64(args.restart_delay),
        stop_grace: Duration::from_secs_f64(args.stop_grace),
        kill_grace: Duration::from_secs_f64(args.kill_grace),
        roll_back: args.roll_back,
        ..Policy::default()
    };
    let limits = WatchdogSettings {
        floor: Duration::from_secs_f64(args.hang_after),
        first_step: Duration::from_secs_f64(args.first_step_after),
        ..WatchdogSettings::default()
    };
    let launches = Launches::open(&folder)?;
    let open = OpenTarget { target, run: dir.handle()?.clone() };
    let mut supervisor = Supervisor::new(args, open, hosts, &policy, limits, launches, console)?;
    (supervisor.manager, supervisor.health) = (manager, health);
    let finish = supervisor.supervise()?;
    let launches = supervisor.launches;
    if as_json {
        print(&launches.json()?)?;
    }
    match finish {
        Finish::Done => Ok(()),
        Finish::Stopped => {
            Err(Failure { code: code::CONTINUE, message: "stopped; run the same command to continue".into() })
        }
        Finish::Hopeless(exit) => Err(Failure {
            code: match exit {
                bessemer_supervise::Exit::Code(number @ (2 | 78)) => number as u8,
                _ => code::FAILED,
            },
            message: format!(
                "the launcher ended with {exit}; not restarted, because a restart would fail in \
                              the same way"
            ),
        }),
        Finish::CrashLoop(_) => Err(Failure::new(format!(
            "gave up after {} restarts in a row without a new checkpoint:{}",
            args.restarts,
            launches.report(args.restarts as usize + 1)
        ))),
    }
}

/// Runs the launcher in this process, which the supervisor started: it ends with the supervisor.
fn become_launcher(command: &[String], parent: u32) -> Failure {
    if let Err(e) = process::bind_to_parent(parent) {
        return Failure::new(e);
    }
    let Some((program, words)) = command.split_first() else {
        return Failure::usage(
            "no command to \
                                                                                     supervise; add -- \
                                                                                     bessemer run RECIPE",
        );
    };
    let e = std::process::Command::new(program).args(words).exec();
    let number = match e.kind() {
        std::io::ErrorKind::NotFound => bessemer_supervise::code::NOT_FOUND,
        _ => bessemer_supervise::code::NOT_EXECUTABLE,
    };
    Failure { code: number as u8, message: format!("cannot run {program}: {e}") }
}

fn hosts(args: &SuperviseArgs) -> Result<Option<Hosts>, Failure> {
    let text = match (&args.hosts, &args.hostfile) {
        (Some(text), _) => text.clone(),
        (None, Some(file)) => read_to_string(file)?,
        (None, None) => {
            let alone = [("--spares", args.spares.is_some()), ("--probe", args.probe.is_some())];
            return match alone.into_iter().find(|(_, given)| *given) {
                Some((name, _)) => Err(Failure::usage(format!("{name} needs --hosts or --hostfile"))),
                None => Ok(None),
            };
        }
    };
    let spares = parse_hosts(args.spares.as_deref().unwrap_or_default()).map_err(Failure::usage)?;
    let active = parse_hosts(&text).map_err(Failure::usage)?;
    if active.is_empty() {
        return Err(Failure::usage("--hosts: wanted at least one host"));
    }
    Hosts::new(active, spares, args.ranks_per_host, args.min_ranks).map(Some).map_err(Failure::usage)
}
