//! `weir trace`: the path of a frame through the switch, stage by stage.

mod live;
mod words;

use std::borrow::Cow;

use miette::Diagnostic;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_config::PortName;
use weir_limits::{FRAME_LEN_MAX, FRAME_LEN_MIN};

use crate::named::NoSuchPort;

pub use live::{FollowRequest, FollowedFrame, FollowedStep, LiveTrace};

/// The path of a frame through the switch, without sending it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Trace {
    /// The stages, in the order of the path.
    pub steps: Vec<TraceStep>,
    /// The ports that would get the frame.
    pub delivered: Vec<PortName>,
}

/// A stage of the path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TraceStep {
    /// The part of the switch that decides, or the place of the frame.
    #[schema(value_type = String)]
    pub stage: Cow<'static, str>,
    /// The port at which the stage is, or to which it is charged. A port that was just added or removed is given by
    /// its number.
    pub port: String,
    /// The decision with its reason, or the event.
    pub says: String,
    /// The counter of [drops](crate::stats::PortStats::drops) that counts the frame.
    #[schema(value_type = Option<String>)]
    pub dropped: Option<Cow<'static, str>>,
}

/// The reason why a trace is refused.
#[derive(Debug, thiserror::Error, Diagnostic)]
pub enum TraceRefused {
    /// There is no such port.
    #[error(transparent)]
    #[diagnostic(transparent)]
    NoSuchPort(#[from] NoSuchPort),
    /// The frame's length is outside the limits.
    #[error("a frame has {FRAME_LEN_MIN} to {FRAME_LEN_MAX} bytes, not {0}")]
    Length(usize),
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use weir_config::{Config, Defaults, SocketPath};
    use weir_testing::eventually;
    use weir_vif::{Options, Vif};
    use weir_wire::Mac;

    use super::*;
    use crate::Switch;

    const A: [u8; 6] = [0x52, 0x54, 0, 0, 0, 1];
    const B: [u8; 6] = [0x52, 0x54, 0, 0, 0, 2];

    fn name(text: &str) -> PortName {
        text.parse().unwrap()
    }

    /// A UDP datagram to `port`.
    fn udp(src: [u8; 6], dst: [u8; 6], port: u16) -> Vec<u8> {
        let mut frame = [&dst[..], &src].concat();
        frame.extend([
            8, 0, 0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0x0f, 0xa0,
        ]);
        frame.extend(port.to_be_bytes());
        frame.extend([0, 8, 0, 0]);
        frame.resize(60, 0);
        frame
    }

    fn told(trace: &Trace) -> String {
        let line = |step: &TraceStep| format!("{} {}: {}\n", step.stage, step.port, step.says);
        trace.steps.iter().map(line).collect()
    }

    #[test]
    fn each_stage_says_what_it_decides_and_why() {
        let dir = tempfile::tempdir().unwrap();
        let control = SocketPath::try_from(dir.path().join("control.sock").as_path()).unwrap();
        let defaults = Defaults { control, control_named: true, keeper: None };
        let text = "[vif.a]\nmac = \"52:54:00:00:00:01\"\nmtu = 1500\n\
        [[vif.a.filter]]\ndirection = \"tx\"\naction = \"accept\"\nmatch = \"udp dst port 53\"\n\
        [[vif.a.filter]]\ndirection = \"tx\"\naction = \"drop\"\nmatch = \"udp dst port 25\"\n\
        [vif.b]\nmac = \"52:54:00:00:00:02\"\n[vif.c]\nvlan = 7\n";
        let config = Config::from_toml("weir.toml", text, &defaults).unwrap();
        let switch: Arc<Switch> = Switch::start(&config).unwrap();
        let _guests: Vec<_> = [("a", A), ("b", B)]
            .map(|(vif, mac)| {
                let socket = dir.path().join(format!("{vif}.sock"));
                let guest = Vif::connect(socket, &Options::new(Mac(mac))).unwrap();
                let port = switch.vif(&name(vif)).unwrap();
                eventually("its rings start", || (port.rx_queues() == 1).then_some(()));
                guest
            })
            .into();

        let trace = switch.trace(&name("a"), &udp(A, B, 53)).unwrap();
        assert_eq!(trace.delivered, [name("b")]);
        let last = trace.steps.last().unwrap();
        assert!(last.says.starts_with("the guest gets the frame and is called"), "{last:?}");
        assert!(last.says.ends_with("latency budget 250 us)"), "{last:?}");
        let said = told(&trace);
        let all_but_last = said.trim_end().rsplit_once('\n').unwrap().0;
        assert_eq!(
            all_but_last,
            "taken a: 60 bytes, untagged\n\
         filter a: tx rule 1 of 2, `tx accept udp dst port 53`, matches and accepts the frame\n\
         mtu a: may send frames of 1514 bytes: the frame is not longer\n\
         vlan a: is in VLAN 1\n\
         source_mac a: 52:54:00:00:00:01 is known behind this port\n\
         destination a: 52:54:00:00:00:02 is behind b\n\
         egress b: leaves without a tag\n\
         queue b: receive queue 0, the only one"
        );

        let trace = switch.trace(&name("a"), &udp(A, B, 25)).unwrap();
        let said = told(&trace);
        assert!(
            said.ends_with(
                "filter a: tx rule 2 of 2, `tx drop udp dst port 25`, matches and drops the frame\n\
         dropped a: the frame ends here, counted as filtered_tx\n"
            ),
            "{said}"
        );
        assert_eq!(trace.steps.last().unwrap().dropped.as_deref(), Some("filtered_tx"));

        let said = told(&switch.trace(&name("a"), &udp(B, A, 1)).unwrap());
        assert!(
            said.contains("source_mac a: 52:54:00:00:00:02: the port is held to another address"),
            "{said}"
        );
        let said = told(&switch.trace(&name("b"), &udp(B, [0xff; 6], 1)).unwrap());
        assert!(
            said.contains("destination b: ff:ff:ff:ff:ff:ff is for everybody: flooded"),
            "{said}"
        );
        let said = told(&switch.trace(&name("c"), &udp(A, B, 1)).unwrap());
        assert!(said.contains("the port is not in service"), "{said}");

        assert!(switch.trace(&name("z"), &udp(A, B, 1)).is_err());
        let short = switch.trace(&name("a"), &[0; 5]).unwrap_err();
        assert_eq!(short.to_string(), "a frame has 14 to 65553 bytes, not 5");
        let drops: u64 = switch.stats().ports.iter().map(|port| port.dropped()).sum();
        assert_eq!(drops, 0, "a trace counts nothing");
    }
}
