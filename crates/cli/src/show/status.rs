//! The output of `weir status`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use serde::Serialize;
use weir_config::PortName;
use weir_switch::stats::{KeeperState, PortKind, PortState, PortStats, SwitchStats};
use weir_text::{ago, count, decimal, uptime};

/// The number of settings and errors that are shown; the others are counted.
const LINES_MAX: usize = 8;

/// A running switch in short.
#[derive(Debug, Serialize)]
pub struct Status {
    /// weir's version.
    pub version: String,
    /// Seconds since weir started.
    pub uptime_s: f64,
    /// The configuration file with which weir was started.
    pub file: Option<PathBuf>,
    /// The state of the keeper.
    pub keeper: KeeperState,
    /// The number of interfaces in each state.
    pub interfaces: BTreeMap<PortState, u64>,
    /// The number of uplinks in each state.
    pub uplinks: BTreeMap<PortState, u64>,
    /// Running settings that differ from the file.
    pub unsaved: Vec<String>,
    /// The reasons why ports stopped or are blocked, and the errors of the last sessions that weir ended.
    pub errors: BTreeMap<PortName, String>,
    /// Threads that are stalled or have panicked, which is a fault.
    pub threads: Vec<String>,
}

impl From<&SwitchStats> for Status {
    fn from(it: &SwitchStats) -> Self {
        let states = |kind: PortKind| {
            let mut states = BTreeMap::new();
            for port in it.ports.iter().filter(|port| port.kind == kind) {
                *states.entry(port.state).or_insert(0) += 1;
            }
            states
        };
        let error = |port: &PortStats| {
            let stopped = port.stopped_reason.as_ref().map(|why| format!("stopped: {why}"));
            let blocked = port.blocked.as_ref().map(super::stats::blocked);
            let (last, ago) = (port.sessions.last_error.as_ref(), ago(port.sessions.last_error_s));
            let last = last.map(|why| format!("last error{ago}: {why}"));
            Some((port.name.clone(), stopped.or(blocked).or(last)?))
        };
        let still = it.still.iter().map(|it| format!("{} stands still", it.name));
        let panicked = it.panicked.iter().map(|it| format!("{} panicked", it.name));
        Self {
            version: it.version.clone(),
            uptime_s: it.uptime_s,
            file: it.file.clone(),
            keeper: it.keeper,
            interfaces: states(PortKind::Vif),
            uplinks: states(PortKind::Uplink),
            unsaved: it.unsaved.clone(),
            errors: it.ports.iter().filter_map(error).collect(),
            threads: still.chain(panicked).collect(),
        }
    }
}

/// The screen.
pub fn status(it: &Status) -> String {
    let mut text = String::new();
    let mut line = |what: &str, says: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{what:<12}{says}");
    };
    line("weir", format!("{}, up {}", it.version, uptime(it.uptime_s)));
    line("file", it.file.as_ref().map_or("none".into(), |file| file.display().to_string()));
    line(
        "keeper",
        match it.keeper {
            KeeperState::None => "none is configured: a restart disconnects guests",
            KeeperState::There => "there: guests outlive weir",
            KeeperState::Gone => "configured, and does not answer: systemctl start weir-keeper",
        }
        .into(),
    );
    line("interfaces", states(&it.interfaces));
    line("uplinks", states(&it.uplinks));
    line(
        "unsaved",
        match it.unsaved.len() {
            0 => "nothing: the file says what runs".into(),
            number => format!("{}, until `weir save`", count(number, "setting")),
        },
    );
    let shown = |line: &mut dyn FnMut(&str, String), all: Vec<String>| {
        let more = all.len().saturating_sub(LINES_MAX);
        all.into_iter().take(LINES_MAX).for_each(|one| line("", one));
        if more > 0 {
            line("", format!("and {more} more"));
        }
    };
    shown(&mut line, it.unsaved.clone());
    let errors: Vec<_> = it.errors.iter().map(|(port, why)| format!("{port}: {why}")).collect();
    let errors = [it.threads.clone(), errors].concat();
    line("errors", if errors.is_empty() { "none".into() } else { decimal(errors.len() as u64) });
    shown(&mut line, errors);
    text
}

/// `3 running, 1 waiting`, the healthiest first.
fn states(of: &BTreeMap<PortState, u64>) -> String {
    let mut all: Vec<_> = of.iter().collect();
    all.sort_by_key(|(state, _)| match state {
        PortState::Running => 0,
        PortState::Halted => 1,
        PortState::Connected => 2,
        PortState::Waiting => 3,
        PortState::Stopped => 4,
    });
    let counted = all.iter().map(|(state, number)| format!("{} {state}", decimal(**number)));
    match counted.collect::<Vec<_>>() {
        none if none.is_empty() => "none".into(),
        states => states.join(", "),
    }
}

#[cfg(test)]
mod tests {
    use weir_switch::stats::StillThread;

    use super::*;

    fn port(name: &str, kind: PortKind, state: PortState) -> PortStats {
        let mut port = PortStats::new(name.parse().unwrap(), kind);
        port.state = state;
        port
    }

    #[test]
    fn ports_of_each_state_are_counted() {
        let all = [
            PortState::Running,
            PortState::Halted,
            PortState::Connected,
            PortState::Waiting,
            PortState::Stopped,
        ];
        let ports = all.map(|state| port(&state.to_string(), PortKind::Vif, state)).to_vec();
        let text = status(&Status::from(&SwitchStats { ports, ..SwitchStats::default() }));
        let says = "interfaces  1 running, 1 halted, 1 connected, 1 waiting, 1 stopped\n";
        assert!(text.contains(says), "{text}");
    }

    #[test]
    fn one_screen_says_what_runs_and_what_is_wrong() {
        let mut stopped = port("db0", PortKind::Vif, PortState::Stopped);
        stopped.stopped_reason = Some("ring 0 is not in shared memory".into());
        let mut failed = port("web0", PortKind::Vif, PortState::Running);
        failed.sessions.last_error = Some("ring 4 does not exist".into());
        let waiting = ["a", "b"].map(|name| port(name, PortKind::Vif, PortState::Waiting));
        let lan = port("lan", PortKind::Uplink, PortState::Running);
        let mut stats = SwitchStats {
            version: "9.9".into(),
            uptime_s: 90.0,
            keeper: KeeperState::Gone,
            file: Some("/etc/weir/weir.toml".into()),
            unsaved: (0..10).map(|n| format!("vif.v{n}.mac")).collect(),
            still: vec![StillThread { name: "weir-worker-0".into(), ..StillThread::default() }],
            ports: [&waiting[..], &[failed, lan, stopped]].concat(),
            ..SwitchStats::default()
        };
        let text = status(&Status::from(&stats));
        for says in [
            "weir        9.9, up ",
            "file        /etc/weir/weir.toml\n",
            "keeper      configured, and does not answer",
            "interfaces  1 running, 2 waiting, 1 stopped\n",
            "uplinks     1 running\n",
            "unsaved     10 settings, until `weir save`\n            vif.v0.mac\n",
            "            and 2 more\n",
            "errors      3\n            weir-worker-0 stands still\n",
            "            db0: stopped: ring 0 is not in shared memory\n",
            "            web0: last error: ring 4 does not exist\n",
        ] {
            assert!(text.contains(says), "{says}: {text}");
        }
        assert!(text.lines().count() < 24, "{text}");
        stats = SwitchStats::default();
        let text = status(&Status::from(&stats));
        for says in [
            "interfaces  none\n",
            "file        none\n",
            "unsaved     nothing",
            "errors      none\n",
        ] {
            assert!(text.contains(says), "{says}: {text}");
        }
    }
}
