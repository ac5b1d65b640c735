//! Hosts of a job and spares: which ones the next launch takes, and how many ranks.

use std::collections::VecDeque;

/// Hosts of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosts {
    active: Vec<String>,
    spares: VecDeque<String>,
    /// Hosts that were lost.
    lost: Vec<String>,
    /// Ranks of each host.
    ranks_per_host: usize,
    /// Fewest ranks.
    least_ranks: usize,
}

/// Consequence of a lost host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostChange {
    /// A spare took its place.
    Replaced {
        /// The lost host.
        lost: String,
        /// The spare.
        by: String,
    },
    /// No host took its place.
    Removed {
        /// The lost host.
        lost: String,
    },
}

impl std::fmt::Display for HostChange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            HostChange::Replaced { lost, by } => write!(f, "host {lost} is lost, spare {by} takes its place"),
            HostChange::Removed { lost } => write!(f, "host {lost} is lost, no spare is left"),
        }
    }
}

/// Errors of hosts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostsError {
    /// A name that is none, or stands twice.
    #[error("host {name:?}: {problem}")]
    Name {
        /// The name.
        name: String,
        /// Problem with the name.
        problem: &'static str,
    },
    /// Too few hosts are left.
    #[error(
        "{left} of the hosts are left, with room for {room} ranks; wanted at least {least} ranks in a layout \
         that the recipe allows; name spares with --spares, or lower --min-ranks"
    )]
    TooFew {
        /// Hosts that are left.
        left: usize,
        /// Ranks that they hold.
        room: usize,
        /// Fewest ranks.
        least: usize,
    },
    /// A placeholder of a command that is none.
    #[error(
        "{found:?} in the command: wanted {{ranks}}, {{hosts}}, {{host-slots}} or {{nodes}}; write {{{{ for a brace"
    )]
    Template {
        /// The placeholder.
        found: String,
    },
}

/// Names of hosts, separated by commas, blanks or lines; what follows a `#` on a line is passed over.
///
/// # Errors
/// A name that could be taken for an option or for two names.
pub fn parse_hosts(text: &str) -> Result<Vec<String>, HostsError> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    let names = lines.flat_map(|line| line.split([',', ' ', '\t'])).filter(|name| !name.is_empty());
    names
        .map(|name| {
            let problem = |problem| HostsError::Name { name: name.to_owned(), problem };
            let plain = |c: char| c.is_ascii_alphanumeric() || ".-_:[]%".contains(c);
            match name.starts_with('-') {
                true => Err(problem("wanted a name that does not begin with a dash")),
                false if !name.chars().all(plain) => Err(problem("wanted letters, digits, dots and dashes")),
                false => Ok(name.to_owned()),
            }
        })
        .collect()
}

impl Hosts {
    /// Hosts that each hold `ranks_per_host` ranks, and spares.
    ///
    /// # Errors
    /// A host that stands twice.
    pub fn new(
        active: Vec<String>,
        spares: Vec<String>,
        ranks_per_host: usize,
        least_ranks: Option<usize>,
    ) -> Result<Hosts, HostsError> {
        let mut seen = std::collections::BTreeSet::new();
        for name in active.iter().chain(&spares) {
            if !seen.insert(name) {
                return Err(HostsError::Name { name: name.clone(), problem: "named twice" });
            }
        }
        let least_ranks = least_ranks.unwrap_or(active.len() * ranks_per_host);
        Ok(Hosts { active, spares: spares.into(), lost: Vec::new(), ranks_per_host, least_ranks })
    }

    /// Hosts of the next launch, in the order of their ranks.
    pub fn active(&self) -> &[String] {
        &self.active
    }

    /// Hosts that were lost so far.
    pub fn lost(&self) -> &[String] {
        &self.lost
    }

    /// Takes out hosts that were lost; each spare takes the place of one. Names that are no active hosts are passed over.
    pub fn lose(&mut self, names: &[String]) -> Vec<HostChange> {
        let mut changes = Vec::new();
        for name in names {
            self.spares.retain(|spare| spare != name);
            let Some(at) = self.active.iter().position(|host| host == name) else { continue };
            self.lost.push(name.clone());
            match self.spares.pop_front() {
                Some(spare) => {
                    self.active[at].clone_from(&spare);
                    changes.push(HostChange::Replaced { lost: name.clone(), by: spare });
                }
                None => {
                    self.active.remove(at);
                    changes.push(HostChange::Removed { lost: name.clone() });
                }
            }
        }
        changes
    }

    /// Moves every rank to another host: each host takes the place of the one after it, the last one becomes a spare, and the spare that has
    /// waited longest takes the first place.
    pub fn rotate(&mut self) {
        if let Some(last) = self.active.pop() {
            self.spares.push_back(last);
            self.active.splice(0..0, self.spares.pop_front());
        }
    }

    /// Ranks of the next launch: the most that the hosts hold and `allows` takes.
    ///
    /// # Errors
    /// [`HostsError::TooFew`].
    pub fn ranks(&self, allows: impl Fn(usize) -> bool) -> Result<usize, HostsError> {
        let room = self.active.len() * self.ranks_per_host;
        let least = self.least_ranks.max(1);
        let found = (least..=room).rev().find(|ranks| allows(*ranks));
        found.ok_or(HostsError::TooFew { left: self.active.len(), room, least })
    }

    /// The hosts with their ranks, as `mpirun --host` takes them: `a:4,b:3`. Hosts without a rank are left out.
    fn slots(&self, ranks: usize) -> Vec<(String, usize)> {
        let mut left = ranks;
        let mut slots = Vec::new();
        for host in &self.active {
            let here = left.min(self.ranks_per_host);
            if here > 0 {
                slots.push((host.clone(), here));
            }
            left -= here;
        }
        slots
    }
}

/// Puts numbers and hosts into a command: `{ranks}`, `{hosts}` (a,b), `{host-slots}` (a:4,b:4), `{nodes}` (number of hosts).
/// Without `hosts` a command is taken as it is.
///
/// # Errors
/// Another placeholder.
pub fn fill_templates(command: &[String], hosts: Option<(&Hosts, usize)>) -> Result<Vec<String>, HostsError> {
    let Some((hosts, ranks)) = hosts else { return Ok(command.to_vec()) };
    let slots = hosts.slots(ranks);
    let value = |name: &str| -> Option<String> {
        let joined =
            |text: &dyn Fn(&(String, usize)) -> String| slots.iter().map(text).collect::<Vec<_>>().join(",");
        Some(match name {
            "ranks" => ranks.to_string(),
            "nodes" => slots.len().to_string(),
            "hosts" => joined(&|(host, _)| host.clone()),
            "host-slots" => joined(&|(host, here)| format!("{host}:{here}")),
            _ => return None,
        })
    };
    command.iter().map(|word| fill(word, &value)).collect()
}

fn fill(word: &str, value: &dyn Fn(&str) -> Option<String>) -> Result<String, HostsError> {
    let (mut text, mut rest) = (String::new(), word);
    while let Some(at) = rest.find('{') {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix("{{") {
            text.push('{');
            rest = after;
            continue;
        }
        let end = rest.find('}').map_or(rest.len(), |end| end + 1);
        let name = rest[..end].trim_start_matches('{').trim_end_matches('}');
        text.push_str(&value(name).ok_or_else(|| HostsError::Template { found: rest[..end].to_owned() })?);
        rest = &rest[end..];
    }
    text.push_str(rest);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        parse_hosts(text).unwrap()
    }

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn spares_take_the_place_of_lost_hosts_then_the_world_shrinks() {
        let mut hosts = Hosts::new(names("a,b,c"), names("d"), 4, Some(4)).unwrap();
        let powers = |ranks: usize| ranks.is_power_of_two();
        assert_eq!(hosts.ranks(|_| true), Ok(12));
        assert_eq!(hosts.ranks(powers), Ok(8));
        let changes = hosts.lose(&names("b x"));
        assert_eq!(changes, [HostChange::Replaced { lost: "b".into(), by: "d".into() }]);
        assert_eq!(hosts.active(), names("a d c"));
        let command = words("mpirun -n {ranks} --host {host-slots} run {{x} {nodes}:{hosts}");
        let filled = fill_templates(&command, Some((&hosts, 10))).unwrap();
        assert_eq!(filled, words("mpirun -n 10 --host a:4,d:4,c:2 run {x} 3:a,d,c"));
        hosts.lose(&names("a c"));
        assert_eq!((hosts.active(), hosts.lost()), (&names("d")[..], &names("b a c")[..]));
        assert_eq!(hosts.ranks(powers), Ok(4));
        assert_eq!(hosts.lose(&names("d")), [HostChange::Removed { lost: "d".into() }]);
        assert_eq!(hosts.ranks(powers), Err(HostsError::TooFew { left: 0, room: 0, least: 4 }));
    }

    #[test]
    fn a_lost_spare_is_no_spare() {
        let mut hosts = Hosts::new(names("a,b"), names("c"), 1, None).unwrap();
        let changes = hosts.lose(&names("c b"));
        assert_eq!(changes, [HostChange::Removed { lost: "b".into() }]);
        let wanted = HostsError::TooFew { left: 1, room: 1, least: 2 };
        assert_eq!(hosts.ranks(|_| true), Err(wanted));
    }

    #[test]
    fn a_rotation_moves_every_rank_and_keeps_every_host() {
        let mut hosts = Hosts::new(names("a,b,c"), vec![], 1, None).unwrap();
        hosts.rotate();
        assert_eq!(hosts.active(), names("c a b"));
        let mut hosts = Hosts::new(names("a,b"), names("d,e"), 1, None).unwrap();
        hosts.rotate();
        assert_eq!((hosts.active(), hosts.spares.len()), (&names("d a")[..], 2));
        // The one that left comes back last.
        hosts.rotate();
        hosts.rotate();
        assert_eq!(hosts.active(), names("b e"));
        let mut hosts = Hosts::new(names("a"), vec![], 1, None).unwrap();
        hosts.rotate();
        assert_eq!(hosts.active(), names("a"));
    }

    #[test]
    fn names_and_placeholders_are_checked() {
        assert_eq!(names("a, b\n# all\nc # d\n\n"), ["a", "b", "c"]);
        assert!(parse_hosts("-oProxyCommand=x").is_err() && parse_hosts("a;b").is_err());
        assert!(Hosts::new(names("a,b"), names("a"), 1, None).is_err());
        let hosts = Hosts::new(names("a"), vec![], 1, None).unwrap();
        for bad in ["{rank}", "x{", "{}"] {
            assert!(fill_templates(&words(bad), Some((&hosts, 1))).is_err(), "{bad}");
        }
        assert_eq!(fill_templates(&words("{rank} {"), None).unwrap(), words("{rank} {"));
    }
}
