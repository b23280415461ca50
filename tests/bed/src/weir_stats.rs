//! `weir stats --json`. No other module knows its format.

use std::{collections::BTreeMap, time::Duration};

use serde_json::Value;

use crate::{
    error::{Error, Result},
    switch::Work,
};

/// One answer of `weir stats --json`.
#[derive(Clone, Debug)]
pub struct Stats {
    report: Value,
}

/// The direction of frames through a port, named from the guest's side as in virtio.
#[derive(Clone, Copy, Debug)]
pub enum Way {
    /// Out of the switch, to the guest.
    Rx,
    /// From the guest, into the switch.
    Tx,
}

impl Stats {
    /// Reads the JSON text.
    pub fn parse(json: &str) -> Result<Self> {
        let report = serde_json::from_str(json).map_err(|_| Error::parse("weir's stats", json))?;
        Ok(Self { report })
    }

    /// A port's state: `waiting`, `connected`, `running` or `stopped`.
    pub fn state(&self, port: &str) -> Result<&str> {
        let state = self.port(port)?["state"].as_str();
        state.ok_or_else(|| self.unreadable("a port's state"))
    }

    /// True if there is a port, and packets can flow at every port.
    pub fn all_running(&self) -> bool {
        self.report["ports"].as_array().is_some_and(|ports| {
            !ports.is_empty() && ports.iter().all(|port| port["state"] == "running")
        })
    }

    /// The reason why weir stopped a port, if it did.
    pub fn stopped_reason(&self, port: &str) -> Result<Option<&str>> {
        Ok(self.port(port)?["stopped_reason"].as_str())
    }

    /// Frames through each of a port's queue pairs.
    pub fn frames_by_queue(&self, port: &str, way: Way) -> Result<Vec<u64>> {
        let way = match way {
            Way::Rx => "rx",
            Way::Tx => "tx",
        };
        let queues = self.port(port)?["queues"].as_array();
        let queues = queues.ok_or_else(|| self.unreadable("a port's queues"))?;
        let frames = queues.iter().map(|queue| queue[way]["frames"].as_u64());
        frames.collect::<Option<_>>().ok_or_else(|| self.unreadable("a queue's frames"))
    }

    /// Time that the workers spent on bursts (ns), and all their time since weir was started.
    pub fn work(&self) -> Result<Work> {
        let taken = || -> Option<Work> {
            let ports = self.report["ports"].as_array()?.iter();
            let busy = ports.map(|port| port["worker_ns"].as_u64()).sum::<Option<u64>>()?;
            let up = Duration::try_from_secs_f64(self.report["uptime_s"].as_f64()?).ok()?;
            Some(Work { busy, of: u64::try_from(up.as_nanos()).ok()? })
        };
        taken().ok_or_else(|| self.unreadable("worker times"))
    }

    /// Number of times that workers woke from sleep.
    pub fn wakeups(&self) -> Result<u64> {
        let workers = || {
            self.report["workers"]
                .as_array()?
                .iter()
                .map(|it| it["wakeups"].as_u64())
                .sum::<Option<u64>>()
        };
        workers().ok_or_else(|| self.unreadable("workers' wake-ups"))
    }

    /// The median time for which calls to a port's guest were held (ns).
    pub fn hold_ns(&self, port: &str) -> Result<u64> {
        let median = self.port(port)?["hold_ns"]["p50"].as_u64();
        median.ok_or_else(|| self.unreadable("a port's holds"))
    }

    /// The cost of a stage for each frame, while stages are measured, in ticks of the processor's counter.
    pub fn ticks_per_frame(&self, stage: &str) -> Result<f64> {
        let of = |key: &dyn Fn(&Value) -> Option<u64>| -> Option<u64> {
            self.report["stages"].as_array()?.iter().map(key).sum()
        };
        let ticks = of(&|worker| worker["cost"][stage].as_u64());
        let frames = of(&|worker| worker["frames"].as_u64()).filter(|frames| *frames > 0);
        let per_frame = ticks.zip(frames).map(|(ticks, frames)| ticks as f64 / frames as f64);
        per_frame.ok_or_else(|| self.unreadable("the cost of a stage"))
    }

    /// Number of calls (interrupts) to guests.
    pub fn calls(&self) -> Result<u64> {
        let of =
            |queue: &Value| Some(queue["rx"]["calls"].as_u64()? + queue["tx"]["calls"].as_u64()?);
        let queues = |port: &Value| port["queues"].as_array()?.iter().map(of).sum::<Option<u64>>();
        let ports = || self.report["ports"].as_array()?.iter().map(queues).sum::<Option<u64>>();
        ports().ok_or_else(|| self.unreadable("queues' calls"))
    }

    /// Dropped frames by port and reason, without zeros.
    pub fn drops(&self) -> Result<BTreeMap<(String, String), u64>> {
        let ports = self.report["ports"].as_array();
        let mut drops = BTreeMap::new();
        for port in ports.ok_or_else(|| self.unreadable("ports"))? {
            let name = port["name"].as_str().unwrap_or_default();
            let counts = port["drops"].as_object();
            for (reason, count) in counts.ok_or_else(|| self.unreadable("a port's drops"))? {
                let count = count.as_u64().ok_or_else(|| self.unreadable("a number of drops"))?;
                if count > 0 {
                    drops.insert((name.to_owned(), reason.clone()), count);
                }
            }
        }
        Ok(drops)
    }

    /// The last reason why a front end's session ended.
    pub fn last_error(&self, port: &str) -> Result<Option<&str>> {
        Ok(self.port(port)?["sessions"]["last_error"].as_str())
    }

    fn port(&self, name: &str) -> Result<&Value> {
        let mut ports = self.report["ports"].as_array().into_iter().flatten();
        ports.find(|port| port["name"] == name).ok_or_else(|| self.unreadable("a port's entry"))
    }

    fn unreadable(&self, what: &'static str) -> Error {
        Error::parse(what, self.report.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JSON: &str = r#"{"uptime_s":2.5,"stages":[{"frames":4,"cost":{"take":300}},{"frames":1,"cost":{"take":50}}],
        "workers":[{"wakeups":4},{"wakeups":2}],"ports":[{"name":"vif0","state":"running",
        "stopped_reason":null,"worker_ns":12,
        "queues":[{"rx":{"frames":3,"calls":2},"tx":{"frames":5,"calls":1}},
        {"rx":{"frames":0,"calls":0},"tx":{"frames":7,"calls":4}}],"hold_ns":{"p50":7}}]}"#;

    #[test]
    fn a_port_is_found_by_name() {
        let stats = Stats::parse(JSON).unwrap();
        assert_eq!(stats.state("vif0").unwrap(), "running");
        assert_eq!(stats.stopped_reason("vif0").unwrap(), None);
        assert_eq!(stats.frames_by_queue("vif0", Way::Tx).unwrap(), [5, 7]);
        assert_eq!(stats.frames_by_queue("vif0", Way::Rx).unwrap(), [3, 0]);
        assert_eq!((stats.wakeups().unwrap(), stats.calls().unwrap()), (6, 7));
        assert!(stats.state("vif1").is_err());
        assert_eq!(stats.hold_ns("vif0").unwrap(), 7);
        assert_eq!(stats.ticks_per_frame("take").unwrap(), 70.0);
        assert!(stats.ticks_per_frame("copy").is_err());
        assert_eq!(stats.work().unwrap(), Work { busy: 12, of: 2_500_000_000 });
    }
}
