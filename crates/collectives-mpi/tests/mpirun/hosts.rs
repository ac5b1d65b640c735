//! Three network namespaces on a bridge play three hosts: a partition is a link that goes down. Nothing is
//! touched but what is named bsm.

use std::path::PathBuf;
use std::process::Command;

const BRIDGE: &str = "bsmbr0";
const COUNT: usize = 3;

fn ip(arguments: &str) -> Result<(), String> {
    let out = Command::new("ip").args(arguments.split(' ')).output().map_err(|e| format!("ip: {e}"))?;
    if out.status.success() {
        return Ok(());
    }
    Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&out.stderr).trim()))
}

/// The hosts; gone when dropped.
pub(crate) struct Hosts {
    agent: PathBuf,
}

impl Hosts {
    pub(crate) fn up() -> Result<Hosts, String> {
        let agent = std::env::temp_dir().join(format!("bessemer-mpi-agent-{}", std::process::id()));
        let hosts = Hosts { agent };
        hosts.clear();
        ip(&format!("link add {BRIDGE} type bridge"))?;
        ip(&format!("link set {BRIDGE} up"))?;
        for i in 0..COUNT {
            ip(&format!("netns add bsm{i}"))?;
            ip(&format!("link add bsmv{i} type veth peer name eth0 netns bsm{i}"))?;
            ip(&format!("link set bsmv{i} master {BRIDGE} up"))?;
            ip(&format!("-n bsm{i} addr add 10.78.0.1{i}/24 dev eth0"))?;
            ip(&format!("-n bsm{i} link set eth0 up"))?;
            ip(&format!("-n bsm{i} link set lo up"))?;
        }
        // Open MPI calls "agent host command", Hydra "agent -x host command".
        let script = "#!/bin/bash\nwhile [[ \"$1\" == -* ]]; do shift; done\ni=${1##*10.78.0.1}; shift\n\
                      exec ip netns exec bsm$i unshare -u bash -c \"hostname bsmhost$i; $*\"\n";
        std::fs::write(&hosts.agent, script).map_err(|e| e.to_string())?;
        let made = Command::new("chmod").arg("+x").arg(&hosts.agent).status();
        made.map_err(|e| e.to_string())?;
        Ok(hosts)
    }

    /// A launcher on the first host, for one rank on each.
    pub(crate) fn launcher(&self, mpirun: &str, open_mpi: bool) -> Command {
        let agent = self.agent.display();
        let hosts = "10.78.0.10:1,10.78.0.11:1,10.78.0.12:1";
        let line = if open_mpi {
            format!(
                "exec {mpirun} --allow-run-as-root --host {hosts} -np {COUNT} --mca plm rsh --mca plm_rsh_agent {agent} \
                 --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0 \"$@\""
            )
        } else {
            format!(
                "export UCX_TLS=tcp,self; exec {mpirun} -launcher ssh -launcher-exec {agent} -iface eth0 -hosts {hosts} -np {COUNT} \"$@\""
            )
        };
        let mut command = Command::new("ip");
        let enter = ["netns", "exec", "bsm0", "unshare", "-u", "bash", "-c"];
        command.args(enter).arg(format!("hostname bsmhost0; {line}")).arg("launcher");
        command
    }

    fn clear(&self) {
        for i in 0..COUNT {
            let name = format!("bsm{i}");
            let Ok(out) = Command::new("ip").args(["netns", "pids", &name]).output() else { continue };
            for pid in String::from_utf8_lossy(&out.stdout).split_whitespace() {
                // It may have ended since.
                let _ = Command::new("kill").args(["-9", pid]).status();
            }
            // They are not there before the first run. Without the first, the link outlives its namespace for a while.
            let _ = ip(&format!("link del bsmv{i}"));
            let _ = ip(&format!("netns del {name}"));
        }
        let _ = ip(&format!("link del {BRIDGE}"));
        let _ = std::fs::remove_file(&self.agent);
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.clear();
    }
}
