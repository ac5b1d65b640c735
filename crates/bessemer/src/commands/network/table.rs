//! Networks as text.

use super::study::Study;
use bessemer_cluster::{PartsTotal, TrafficTime, axis_name};
use bessemer_report::{grouped, terminal};
use bessemer_units::Bytes;
use std::fmt::Write;

/// Everything about one network.
pub(super) fn one(study: &Study) -> String {
    let mut text = format!("{}: {}\n", study.network.name(), shape(study));
    for (name, value) in facts(study) {
        let _ = writeln!(text, "  {name:<20} {value}");
    }
    if let (Some(slots), Some(first)) = (&study.slots, study.report.times.first()) {
        let bytes = first.traffic.bytes;
        let _ = writeln!(
            text,
            "  {:<20} {} of {} B: {} a worker ({} fill the line); all-reduce of {bytes} in {}",
            "slots that sum",
            slots.slots,
            slots.packet,
            rate(slots.throughput()),
            slots.slots_of_full_rate(),
            slots.all_reduce(bytes.0 as f64).map_or("?".into(), time)
        );
    }
    let _ = writeln!(text, "\njob of {} ranks, {} routing", study.job.ranks(), study.routing_name());
    if !study.failed.is_empty() {
        let _ = writeln!(text, "dead: {}; {} devices cut off", study.failed.join(", "), study.cut_off);
    }
    text += &times(study);
    for rule in &study.broken_rules {
        let _ = writeln!(text, "warning: {rule}");
    }
    text + &failures(study)
}

fn times(study: &Study) -> String {
    let head =
        ["axis", "ranks", "groups", "collective", "bytes", "times", "algorithm", "time", "flows a cable"];
    let row = |t: &TrafficTime| {
        let shared = match t.shared_links {
            0 => "1".to_string(),
            links => format!("up to {} ({links} shared)", t.most_flows),
        };
        vec![
            axis_name(t.traffic.axis).to_string(),
            t.traffic.ranks.to_string(),
            t.groups.to_string(),
            t.traffic.kind.name().into(),
            t.traffic.bytes.to_string(),
            t.traffic.count.to_string(),
            t.algorithm.name().into(),
            time(t.seconds),
            shared,
        ]
    };
    let rows: Vec<Vec<String>> = study.report.times.iter().map(row).collect();
    let mut text = terminal::listing(&head.map(str::to_string), &rows);
    for t in study.report.times.iter().filter(|t| !t.others.is_empty()) {
        let others: Vec<String> =
            t.others.iter().map(|(a, s)| format!("{} {}", a.name(), time(*s))).collect();
        let _ = writeln!(text, "  {} instead: {}", t.traffic.kind.name(), others.join(", "));
    }
    let _ = writeln!(text, "communication of a step, one after another: {}", time(study.report.total));
    if let Some(seconds) = study.report.between_devices() {
        let _ = writeln!(
            text,
            "without sums in switches: {} ({:.2}x)",
            time(seconds),
            seconds / study.report.total
        );
    }
    if let Some(together) = study.report.together {
        let _ = writeln!(text, "one collective of each axis, all at once: {}", time(together));
    }
    text
}

fn failures(study: &Study) -> String {
    let Some(dead) = &study.dead else { return String::new() };
    let head = ["if this part dies", "of", "cut off", "communication", ""].map(str::to_string);
    let rows: Vec<Vec<String>> = dead
        .iter()
        .map(|d| {
            let (seconds, change) = match &d.total {
                Ok(seconds) => (time(*seconds), slower(*seconds, study.report.total)),
                Err(_) => ("the job stops".into(), String::new()),
            };
            vec![d.part.clone(), d.of.to_string(), d.cut_off.to_string(), seconds, change]
        })
        .collect();
    format!("\n{}", terminal::listing(&head, &rows))
}

/// "+12 %", nothing if it is as fast.
fn slower(now: f64, before: f64) -> String {
    let change = if before > 0.0 { 100.0 * (now / before - 1.0) } else { 0.0 };
    if change.abs() < 0.05 { String::new() } else { format!("{change:+.1} %") }
}

/// Networks side by side.
pub(super) fn several(studies: &[Study], width: usize) -> String {
    let mut head: Vec<String> = studies.iter().map(|s| s.network.name().to_string()).collect();
    // Paths are long; their file says which.
    for name in &mut head {
        if let Some((_, file)) = name.rsplit_once('/') {
            *name = file.to_string();
        }
    }
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut add = |name: &str, cell: &dyn Fn(&Study) -> String| {
        rows.push(std::iter::once(name.to_string()).chain(studies.iter().map(cell)).collect());
    };
    add("topology", &|s| s.network.topology().name().into());
    for (i, (name, _)) in facts(&studies[0]).iter().enumerate() {
        add(name, &|s| facts(s)[i].1.clone());
    }
    for t in 0..studies.iter().map(|s| s.report.times.len()).max().unwrap_or(0) {
        let named = studies.iter().find_map(|s| s.report.times.get(t));
        let name = named
            .map_or(String::new(), |t| format!("{} {}", axis_name(t.traffic.axis), t.traffic.kind.name()));
        add(&name, &|s| s.report.times.get(t).map_or("not simulated".into(), |t| time(t.seconds)));
        let gain = |t: &TrafficTime| {
            let (algorithm, seconds) = t.between_devices()?;
            Some(format!(", {:.2}x {}", seconds / t.seconds, algorithm.name()))
        };
        let by = |t: &TrafficTime| format!("{}{}", t.algorithm.name(), gain(t).unwrap_or_default());
        add("  by", &|s| s.report.times.get(t).map_or(String::new(), by));
    }
    add("communication", &|s| time(s.report.total));
    if studies.iter().any(|s| s.report.between_devices().is_some()) {
        let without = |s: &Study| {
            let seconds = s.report.between_devices()?;
            Some(format!("{} ({:.2}x)", time(seconds), seconds / s.report.total))
        };
        add("  without sums in switches", &|s| without(s).unwrap_or_else(|| "the same".into()));
    }
    add("all at once", &|s| s.report.together.map_or("-".into(), time));
    if studies.iter().all(|s| s.dead.is_some()) {
        add("worst dead part", &|s| worst(s).map_or("-".into(), |(part, _)| part));
        add("  then", &|s| worst(s).map_or("-".into(), |(_, what)| what));
    }
    terminal::columns(&head, &rows, width)
}

/// The part whose death costs most: it cuts off most devices, or slows most.
fn worst(study: &Study) -> Option<(String, String)> {
    let dead = study.dead.as_ref()?;
    let cost = |seconds: &Result<f64, _>| seconds.as_ref().map_or(f64::INFINITY, |s| *s);
    let part = dead
        .iter()
        .max_by(|a, b| (cost(&a.total).total_cmp(&cost(&b.total))).then(a.cut_off.cmp(&b.cut_off)))?;
    let what = match &part.total {
        Ok(seconds) => slower(*seconds, study.report.total),
        Err(_) => format!("{} cut off, job stops", part.cut_off),
    };
    Some((part.part.clone(), if what.is_empty() { "as fast".into() } else { what }))
}

fn shape(study: &Study) -> String {
    let node = study.network.node();
    let shared =
        if node.nics < node.devices { format!(" behind {} ports", node.nics) } else { String::new() };
    let devices = if node.devices == 1 { "device" } else { "devices" };
    format!(
        "{}, {} nodes of {} {devices}{shared}",
        study.network.topology().name(),
        study.facts.nodes,
        node.devices
    )
}

/// Figures of a network by name, the same names for every network.
fn facts(study: &Study) -> Vec<(&'static str, String)> {
    let f = &study.facts;
    let whole = grouped;
    let total = |total: Option<PartsTotal>, unit: &str| match total {
        None => "no figures given".to_string(),
        Some(t) if t.without.is_empty() => format!("{} {unit}", whole(t.total.round() as u64)),
        Some(t) => format!("{} {unit} without {}", whole(t.total.round() as u64), t.without.join(", ")),
    };
    vec![
        ("devices", whole(f.devices.into())),
        ("switches", whole(f.switches.into())),
        ("ports of a switch", whole(f.radix.into())),
        ("cables", whole(f.cables)),
        ("transceivers", whole(f.transceivers)),
        ("links inside nodes", whole(f.node_links)),
        ("longest path", format!("{} links", f.diameter)),
        ("bisection", rate(f.bisection_bandwidth)),
        ("cost", total(study.cost(), "USD")),
        ("power", total(study.power(), "W")),
        ("memory of the graph", Bytes(f.graph_bytes as u64).to_string()),
    ]
}

/// Three digits with a unit that fits.
pub(super) fn time(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s < 1e-3 => (s * 1e6, "us"),
        s if s < 1.0 => (s * 1e3, "ms"),
        s => (s, "s"),
    };
    format!("{value:.1} {unit}")
}

/// Bytes a second.
pub(super) fn rate(bytes: f64) -> String {
    match bytes {
        b if b >= 1e15 => format!("{:.1} PB/s", b / 1e15),
        b if b >= 1e12 => format!("{:.1} TB/s", b / 1e12),
        b if b >= 1e8 => format!("{:.1} GB/s", b / 1e9),
        b => format!("{:.2} MB/s", b / 1e6),
    }
}
