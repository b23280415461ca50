//! An interface's share of the workers, and how fast it may send and receive.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_engine::{Rate, RateLimit};
use weir_limits as limits;
use weir_policy::schedule::{Kind, Share, Window};

use super::error::Fault;
use super::keys::{Change, keys};
use super::values::{
    BitRate, BurstSize, LateTurns, PacketBurst, PacketRate, Period, Schedule, ValueError, Weight,
};

keys! {
    /// The rates at which an interface may receive. Frames beyond them are dropped.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct Receiving {
        /// The rate at which the guest may receive, in bits/s.
        rate: Option<BitRate> => Change<BitRate> = None, [named("rx_rate"), not_of_copies()];
        /// The bytes that may come at once, beyond `rx_rate`.
        burst: Option<BurstSize> => Change<BurstSize> = None, [named("rx_burst"), not_of_copies()];
        /// The rate at which the guest may receive, in frames/s.
        packets_per_second: Option<PacketRate> => Change<PacketRate> = None,
            [named("rx_packets_per_second"), not_of_copies()];
        /// The frames that may come at once, beyond `rx_packets_per_second`.
        packet_burst: Option<PacketBurst> => Change<PacketBurst> = None,
            [named("rx_packet_burst"), not_of_copies()];
    }

    /// Changes of [`Receiving`] by `weir vif set`. Clearing a rate clears its burst.
    #[derive(Debug, Clone, Copy)]
    pub struct ReceivingChanges;
}

keys! {
    /// An interface's share of the workers, and its rates.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[serde(default, deny_unknown_fields)]
    pub struct Sharing {
        /// Its part of a worker's time, in proportion to others'.
        weight: Option<Weight> => Change<Weight> = None, [];
        /// The turns that may be late.
        window: Option<LateTurns> => Change<LateTurns> = None, [];
        /// The period in which one turn is due.
        period: Option<Period> => Change<Period> = None, [];
        /// The rate at which the guest may send, in bits/s.
        rate: Option<BitRate> => Change<BitRate> = None, [];
        /// The bytes that may be sent at once, beyond `rate`.
        burst: Option<BurstSize> => Change<BurstSize> = None, [];
        /// The rate at which the guest may send, in frames/s.
        packets_per_second: Option<PacketRate> => Change<PacketRate> = None, [];
        /// The frames that may be sent at once, beyond `packets_per_second`.
        packet_burst: Option<PacketBurst> => Change<PacketBurst> = None, [];
        /// The rates at which the guest may receive.
        receive: Receiving => ReceivingChanges = Receiving::default(), [];
    }

    /// Changes of [`Sharing`] by `weir vif set`. Clearing a rate clears its burst.
    #[derive(Debug, Clone, Copy)]
    pub struct SharingChanges;
}

/// The fault of a key that is set without another key that it needs.
fn without(key: &'static str, has: bool, needs: &'static str, has_needed: bool) -> Option<Fault> {
    (has && !has_needed).then(|| Fault {
        keys: [key, needs],
        reason: format!("`{key}` without `{needs}`"),
        help: format!("add `{needs}`"),
    })
}

impl Receiving {
    fn faults(&self) -> impl Iterator<Item = Fault> {
        let Self { rate, burst, packets_per_second: packets, packet_burst } = self;
        let bytes = without("rx_burst", burst.is_some(), "rx_rate", rate.is_some());
        let (key, needs) = ("rx_packet_burst", "rx_packets_per_second");
        bytes.into_iter().chain(without(key, packet_burst.is_some(), needs, packets.is_some()))
    }

    /// The receiving rates for the engine. The default burst is the rate times
    /// [`POLICE_BURST_NS_DEFAULT`](limits::POLICE_BURST_NS_DEFAULT), but at least a GSO frame or a
    /// burst of frames.
    pub fn limit(&self) -> RateLimit {
        let Self { rate, burst, packets_per_second, packet_burst } = *self;
        rate_limit(
            (rate, burst),
            (packets_per_second, packet_burst),
            limits::POLICE_BURST_NS_DEFAULT,
        )
    }
}

impl Sharing {
    /// Keys that do not fit each other, or do not fit the switch's `schedule` if it is known.
    pub(super) fn faults(&self, schedule: Option<Schedule>) -> Vec<Fault> {
        let Self { window, period, rate, burst, packets_per_second: packets, packet_burst, .. } =
            self;
        let pairs = [
            without("window", window.is_some(), "period", period.is_some()),
            without("period", period.is_some(), "window", window.is_some()),
            without("burst", burst.is_some(), "rate", rate.is_some()),
            without(
                "packet_burst",
                packet_burst.is_some(),
                "packets_per_second",
                packets.is_some(),
            ),
        ];
        let uses = [
            ("weight", self.weight.is_some(), Kind::Drr),
            ("window", self.window.is_some(), Kind::Dwcs),
        ];
        let unused = uses.into_iter().filter_map(|(key, has, kind)| {
            let schedule = schedule.filter(|it| has && it.0 != kind)?;
            Some(Fault {
                keys: [key, key],
                reason: format!("`{key}` has no effect with schedule \"{schedule}\""),
                help: format!("remove it, or set `schedule = \"{kind}\"` in [switch]"),
            })
        });
        pairs.into_iter().flatten().chain(self.receive.faults()).chain(unused).collect()
    }

    /// The interface's share of turns, for the engine.
    pub fn share(&self) -> Share {
        let window = self.window.zip(self.period).and_then(|(late, period)| {
            // Both values were checked when they were made.
            Window::new(late.x, late.y, period.get()).ok()
        });
        Share { weight: self.weight.map_or(1, Weight::get), window }
    }

    /// The share with sending limited to `bytes` in each `interval_us`, in place of its own rate in bits/s. A limit
    /// above the highest rate is none.
    ///
    /// # Errors
    /// [`ValueError`] if the rate is below the lowest one.
    pub fn with_credit(self, bytes: u64, interval_us: u32) -> Result<Self, ValueError> {
        let bits_per_s = u128::from(bytes) * 8_000_000 / u128::from(interval_us.max(1));
        let bits_per_s = u64::try_from(bits_per_s).unwrap_or(u64::MAX);
        if bits_per_s > limits::RATE_BITS_MAX {
            return Ok(Self { rate: None, burst: None, ..self });
        }
        let burst = bytes.clamp(limits::FRAME_LEN_MAX.into(), limits::RATE_BURST_BYTES_MAX);
        let rate = Some(format!("{bits_per_s}bit").parse()?);
        Ok(Self { rate, burst: Some(format!("{burst}B").parse()?), ..self })
    }

    /// The sending rates for the engine. The default burst is the rate times
    /// [`RATE_BURST_NS_DEFAULT`](limits::RATE_BURST_NS_DEFAULT), but at least a GSO frame or a
    /// burst of frames.
    pub fn limit(&self) -> RateLimit {
        let bits = (self.rate, self.burst);
        let packets = (self.packets_per_second, self.packet_burst);
        rate_limit(bits, packets, limits::RATE_BURST_NS_DEFAULT)
    }
}

/// A limit in the engine's numbers. The default burst is the rate times `burst_ns`, but at least a
/// GSO frame or a burst of frames.
fn rate_limit(
    (rate, burst): (Option<BitRate>, Option<BurstSize>),
    (packet_rate, packet_burst): (Option<PacketRate>, Option<PacketBurst>),
    burst_ns: u64,
) -> RateLimit {
    let in_default_time = |per_s: u64| per_s / (1_000_000_000 / burst_ns);
    let bits = rate.map(|rate| {
        let default = in_default_time(rate.get()).max(8 * u64::from(limits::FRAME_LEN_MAX));
        Rate { per_s: rate.get(), burst: burst.map_or(default, |burst| 8 * burst.get()) }
    });
    let packets = packet_rate.map(|rate| {
        let per_s = rate.get().into();
        let default = in_default_time(per_s).max(limits::BURST_MAX as u64);
        Rate { per_s, burst: packet_burst.map_or(default, |burst| burst.get().into()) }
    });
    RateLimit { bits, packets }
}

impl ReceivingChanges {
    /// Clears the burst of a rate that is cleared.
    fn settle(&mut self, _: &mut Receiving) {
        self.burst.clear_with(&self.rate);
        self.packet_burst.clear_with(&self.packets_per_second);
    }
}

impl SharingChanges {
    /// Clears the burst of a rate that is cleared, and the period of a window that is cleared.
    fn settle(&mut self, _: &mut Sharing) {
        if self.window == Change::Clear {
            self.period = Change::Clear;
        }
        self.burst.clear_with(&self.rate);
        self.packet_burst.clear_with(&self.packets_per_second);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Config, ConfigError, Defaults, Setting, VifChanges, VifConfig};
    use super::*;

    #[test]
    fn quantities_have_units_and_bounds() {
        for (text, bits) in [("64kbit", 64_000), ("1Gbit", 1_000_000_000), ("25mbit", 25_000_000)] {
            assert_eq!(text.parse::<BitRate>().unwrap().get(), bits);
        }
        assert_eq!("2500Mbit".parse::<BitRate>().unwrap().to_string(), "2500Mbit");
        assert_eq!("1000000000bit".parse::<BitRate>().unwrap().to_string(), "1Gbit");
        assert_eq!("256KiB".parse::<BurstSize>().unwrap().get(), 256 * 1024);
        assert_eq!("250us".parse::<Period>().unwrap().get(), 250_000);
        for bad in ["", "Gbit", "1", "1.5Gbit", "-1Gbit", "1 Gbit", "1GB", "1Gbit/s"] {
            let error = bad.parse::<BitRate>().unwrap_err();
            assert!(error.to_string().contains("is not a rate, such as"), "{error}");
        }
        let error = "1bit".parse::<BitRate>().unwrap_err();
        assert_eq!(error.to_string(), "`1bit` is not within 64kbit to 1000Gbit");
        assert!("99999999999999999999999Gbit".parse::<BitRate>().is_err());
        assert!("18446744073709551615Gbit".parse::<BitRate>().is_err());
        assert!("1B".parse::<BurstSize>().is_err());
        assert!("1ns".parse::<Period>().is_err() && "2s".parse::<Period>().is_err());
    }

    #[test]
    fn windows_are_fractions_of_turns() {
        assert_eq!("1/4".parse::<LateTurns>().unwrap().to_string(), "1/4");
        for bad in ["", "1", "/", "1/", "2/1", "0/0", "a/b", "1/4/5", "-1/4", "1/65536", "1/1001"] {
            assert!(bad.parse::<LateTurns>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_default_burst_is_a_millisecond_and_at_least_what_goes_at_once() {
        let fast = Sharing { rate: Some("10Gbit".parse().unwrap()), ..Sharing::default() };
        let rate = Some(Rate { per_s: 10_000_000_000, burst: 10_000_000 });
        assert_eq!(fast.limit(), RateLimit { bits: rate, packets: None });
        let slow = Sharing { rate: Some("1Mbit".parse().unwrap()), ..Sharing::default() };
        assert_eq!(slow.limit().bits.unwrap().burst, 8 * u64::from(limits::FRAME_LEN_MAX));
        let packets =
            Sharing { packets_per_second: Some("1000".parse().unwrap()), ..Sharing::default() };
        assert_eq!(packets.limit().packets, Some(Rate { per_s: 1_000, burst: 64 }));
        assert_eq!(Sharing::default().limit(), RateLimit::NONE);
    }

    /// The `Sharing` of the interface, or the messages of all problems.
    fn parse(schedule: &str, lines: &str) -> Result<Sharing, Vec<String>> {
        let control = "/run/weir/control.sock".parse().unwrap();
        let defaults = Defaults { control, control_named: false, keeper: None };
        let text = format!("[switch]\nschedule = \"{schedule}\"\n[vif.web0]\n{lines}\n");
        let messages = |error: ConfigError| {
            error.problems().iter().map(|problem| problem.message.clone()).collect()
        };
        Config::from_toml("weir.toml", &text, &defaults)
            .map(|config| config.vifs[0].sharing)
            .map_err(messages)
    }

    #[test]
    fn every_key_is_read() {
        let rates = "rate = \"1Gbit\"\nburst = \"256KiB\"\n\
                     packets_per_second = 100000\npacket_burst = 256\n";
        let limit = RateLimit {
            bits: Some(Rate { per_s: 1_000_000_000, burst: 8 * 256 * 1024 }),
            packets: Some(Rate { per_s: 100_000, burst: 256 }),
        };
        let drr = parse("drr", &format!("weight = 4\n{rates}")).unwrap();
        assert_eq!((drr.share(), drr.limit()), (Share { weight: 4, window: None }, limit));
        let dwcs = parse("dwcs", &format!("window = \"1/4\"\nperiod = \"1ms\"\n{rates}"));
        let window = Window::new(1, 4, 1_000_000).ok();
        assert_eq!(dwcs.unwrap().share(), Share { weight: 1, window });
        assert_eq!(parse("round-robin", ""), Ok(Sharing::default()));
    }

    #[test]
    fn what_is_received_has_the_same_keys() {
        let all = "rx_rate = \"1Gbit\"\nrx_burst = \"256KiB\"\n\
                   rx_packets_per_second = 100000\nrx_packet_burst = 256\n";
        let sharing = parse("drr", all).unwrap();
        let limit = RateLimit {
            bits: Some(Rate { per_s: 1_000_000_000, burst: 8 * 256 * 1024 }),
            packets: Some(Rate { per_s: 100_000, burst: 256 }),
        };
        assert_eq!((sharing.receive.limit(), sharing.limit()), (limit, RateLimit::NONE));
        // The default burst is the rate times 10 ms, but at least a burst of frames.
        let fast = parse("drr", "rx_rate = \"10Gbit\"\nrx_packets_per_second = 100").unwrap();
        let limit = RateLimit {
            bits: Some(Rate { per_s: 10_000_000_000, burst: 100_000_000 }),
            packets: Some(Rate { per_s: 100, burst: 64 }),
        };
        assert_eq!(fast.receive.limit(), limit);
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        let refused = |schedule, lines| parse(schedule, lines).unwrap_err().join("; ");
        for (schedule, lines, message) in [
            ("drr", "burst = \"64KiB\"", "`vif.web0`: `burst` without `rate`"),
            ("drr", "packet_burst = 9", "`vif.web0`: `packet_burst` without `packets_per_second`"),
            ("drr", "rx_burst = \"64KiB\"", "`vif.web0`: `rx_burst` without `rx_rate`"),
            (
                "drr",
                "rate = \"1Gbit\"\nrx_packet_burst = 9",
                "`vif.web0`: `rx_packet_burst` without `rx_packets_per_second`",
            ),
            ("dwcs", "window = \"1/4\"", "`vif.web0`: `window` without `period`"),
            ("dwcs", "period = \"1ms\"", "`vif.web0`: `period` without `window`"),
            ("dwcs", "weight = 2", "`vif.web0`: `weight` has no effect with schedule \"dwcs\""),
            (
                "round-robin",
                "weight = 2",
                "`vif.web0`: `weight` has no effect with schedule \"round-robin\"",
            ),
            (
                "drr",
                "window = \"1/4\"\nperiod = \"1ms\"",
                "`vif.web0`: `window` has no effect with schedule \"drr\"",
            ),
        ] {
            assert_eq!(refused(schedule, lines), message);
        }
        assert!(refused("wfq", "").contains("schedule"));
    }

    #[test]
    fn bad_values_are_refused_each_by_itself() {
        for line in [
            "weight = 0",
            "weight = 101",
            "weight = \"2\"",
            "rate = 1000000000",
            "rate = \"fast\"",
            "rate = \"1Gbit\"\nburst = \"1GBit\"",
            "packets_per_second = 0",
            "packets_per_second = 4294967296",
            "packets_per_second = 5\npacket_burst = 0",
            "rx_rate = \"1bit\"",
            "rx_rate = \"1Gbit\"\nrx_burst = \"1B\"",
            "rx_packets_per_second = 0",
        ] {
            assert_eq!(parse("drr", line).unwrap_err().len(), 1, "{line}");
        }
    }

    #[test]
    fn a_running_interface_is_changed_key_by_key() {
        let name = "web0".parse().unwrap();
        let settings = |texts: &[&str]| -> Vec<Setting> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let mut vif = VifConfig::new(name, "/run/weir/web0.sock".parse().unwrap());
        let mut set = |texts: &[&str]| {
            let changes = VifChanges::from_settings(&vif.name, &settings(texts)).unwrap();
            // The changes travel over the control socket as JSON.
            let json = serde_json::to_string(&changes).unwrap();
            serde_json::from_str::<VifChanges>(&json).unwrap().apply(&mut vif);
            vif.sharing
        };
        let sharing = set(&["weight=4", "rate=1Gbit", "burst=1MiB", "packets_per_second=1000"]);
        assert_eq!(sharing.weight.map(Weight::get), Some(4));
        assert_eq!(sharing.burst.map(BurstSize::get), Some(1 << 20));
        let sharing = set(&["rx_rate=1Gbit", "rx_burst=1MiB", "rx_packets_per_second=9"]);
        assert_eq!(sharing.receive.burst.map(BurstSize::get), Some(1 << 20));
        assert_eq!(set(&["rx_rate=2Gbit"]).receive.burst.map(BurstSize::get), Some(1 << 20));
        let sharing = set(&["rx_rate=none", "rx_packets_per_second=none"]);
        assert_eq!(sharing.receive, Receiving::default());
        let sharing = set(&["rate=none", "weight=none"]);
        let packets_per_second = Some("1000".parse().unwrap());
        assert_eq!(sharing, Sharing { packets_per_second, ..Sharing::default() });
    }

    #[test]
    fn what_is_cleared_takes_along_what_belongs_to_it() {
        let mut sharing = Sharing {
            rate: Some("1Gbit".parse().unwrap()),
            burst: Some("1MiB".parse().unwrap()),
            window: Some("1/2".parse().unwrap()),
            period: Some("1ms".parse().unwrap()),
            ..Sharing::default()
        };
        let clear = SharingChanges {
            rate: Change::Clear,
            window: Change::Clear,
            ..SharingChanges::default()
        };
        crate::keys::Alters::apply(clear, &mut sharing);
        assert_eq!(sharing, Sharing::default());
    }

    #[test]
    fn bytes_in_an_interval_are_a_rate_and_its_burst() {
        let weighed = Sharing { weight: Some("3".parse().unwrap()), ..Sharing::default() };
        let limited = |bytes, us| weighed.with_credit(bytes, us).unwrap();
        let shown = |it: Sharing| (it.rate.unwrap().to_string(), it.burst.unwrap().get());
        assert_eq!(shown(limited(62_500, 50_000)), ("10Mbit".into(), limits::FRAME_LEN_MAX.into()));
        assert_eq!(shown(limited(6_250_000, 50_000)), ("1Gbit".into(), 6_250_000));
        assert_eq!(limited(62_500, 50_000).weight, weighed.weight);
        let own = Sharing { rate: Some("1Gbit".parse().unwrap()), ..weighed };
        assert_eq!(own.with_credit(u64::MAX, 1).unwrap(), weighed);
        assert_eq!(limited(62_500, 0).rate.unwrap().to_string(), "500Gbit");
        let error = weighed.with_credit(1, u32::MAX).unwrap_err().to_string();
        assert_eq!(error, "`0bit` is not within 64kbit to 1000Gbit");
    }
}
