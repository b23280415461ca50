//! The costs of one machine.

use crate::cpus::Scheduling;

/// Idle time after which a CPU is cold (ns): see [`Profile::warm_permille`].
const COLD_NS: u64 = 150_000;

/// The costs of a host and its guests: CPU time at full speed on a nearby CPU, unless stated
/// otherwise. Calibration measures them; a paper's testbed gives or implies some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The CPUs and their scheduler.
    pub scheduling: Scheduling,
    /// Time from the eventfd write, or the interrupt of a halted vCPU, to the ready thread (ns
    /// passed, no CPU time).
    pub wakeup_latency_ns: u64,
    /// 90th percentile of this time (ns).
    pub wakeup_latency_p90_ns: u64,
    /// 99th percentile of this time (ns). If neither percentile exceeds the first value, the time
    /// is constant; otherwise the first value is the median, and the distribution is exponential
    /// between and above.
    pub wakeup_latency_p99_ns: u64,
    /// Time from a timer's end to its ready sleeper (ns passed, no CPU time).
    pub timer_late_ns: u64,
    /// 90th percentile of this time (ns), as for wake-ups.
    pub timer_late_p90_ns: u64,
    /// 99th percentile of this time (ns).
    pub timer_late_p99_ns: u64,
    /// Smallest cost of a sleep, on a CPU that was hardly idle, in thousandths of the cost after 150
    /// us and more; linear in between. 0: constant cost.
    pub warm_permille: u64,
    /// Mean length of an interrupt of any running thread, above all by the kernel's tick (ns); no
    /// ticks if this or the next value is 0.
    pub tick_ns: u64,
    /// Mean interval of these interrupts on each CPU (ns).
    pub tick_every_ns: u64,

    /// Worker: a sleep, `epoll_wait` included (ns each).
    pub sleep_ns: u64,
    /// Worker: the part of going to sleep that is not in `sleep_ns` (ns each).
    pub settle_ns: u64,
    /// Worker: setting a timer for each nap, and before a sleep if no set timer will do (ns each). The same for a
    /// guest that is a thread and sends at a rate.
    pub timer_set_ns: u64,
    /// Worker: additional cost of a sleep that a timer ends (ns each).
    pub timer_fired_ns: u64,
    /// Worker: a look at the epoll set without sleep (ns each).
    pub poll_ns: u64,
    /// Worker: a look at the warm queues (ns each).
    pub look_ns: u64,
    /// Worker: a deadline that has passed (ns each).
    pub deadline_ns: u64,
    /// Worker: a burst, whatever its content (ns each).
    pub burst_ns: u64,
    /// Worker: taking a frame from a guest's ring (ns each).
    pub take_ns: u64,
    /// Worker: the choice of a frame's destination (ns each).
    pub classify_ns: u64,
    /// Worker: placing a frame in a guest's ring, without its bytes (ns each).
    pub place_ns: u64,
    /// Worker: the copy (ps for each byte).
    pub copy_ps_per_byte: u64,
    /// Worker: publishing a frame and completing it at its sender (ns each).
    pub publish_ns: u64,
    /// Worker: giving a call (ns each).
    pub call_ns: u64,
    /// Worker: a call to a guest whose CPU is busy, which needs no wake-up (ns each); 0: as any
    /// other.
    pub call_busy_ns: u64,
    /// Worker: an interrupt of an uplink (ns each; C_p of Dong 2011 Eq. 2).
    pub uplink_interrupt_ns: u64,
    /// Worker: taking a frame from an uplink (ns each).
    pub uplink_take_ns: u64,
    /// Worker: handing a frame to an uplink, without its bytes (ns each).
    pub uplink_place_ns: u64,

    /// Guest that is a thread: return from a sleep that was over before it began (ns each); 0: as
    /// from any timer.
    pub timer_missed_ns: u64,
    /// Guest: an interrupt by a call: exits, injection, the handler up to the poll (ns each; C_v of Dong 2011 Eq.
    /// 2).
    pub interrupt_ns: u64,
    /// Guest: an interrupt while another thread uses its CPU, which then leaves no idle state (ns
    /// each); 0: as any other.
    pub interrupt_busy_ns: u64,
    /// Guest: an interrupt of its own timer (ns each).
    pub guest_timer_ns: u64,
    /// Guest: an empty look at its ring, and the request for calls (ns each).
    pub poll_end_ns: u64,
    /// Guest: the same while another thread waits for its CPU, which then stays busy (ns each); 0:
    /// the same cost.
    pub poll_end_busy_ns: u64,
    /// Guest: a received frame through the stack to its reader, without its bytes (ns each).
    pub receive_ns: u64,
    /// Guest: the bytes of a received frame (ps for each byte).
    pub receive_ps_per_byte: u64,
    /// Guest: a frame from its writer to the ring, without its bytes (ns each).
    pub send_ns: u64,
    /// Guest: the bytes of a sent frame (ps for each byte).
    pub send_ps_per_byte: u64,
    /// Guest: a kick, including its exit (ns each).
    pub kick_ns: u64,
    /// Guest: a kick for a worker that is awake (ns each); 0: as any other.
    pub kick_busy_ns: u64,

    /// Worker and guest: using a frame that a CPU behind another cache of the socket wrote last (ns each).
    pub far_cache_ns: u64,
    /// Worker and guest: using a frame that a CPU of another socket wrote last (ns each).
    pub far_socket_ns: u64,

    /// Interrupt controller: signalling a guest on its own CPU ([`Realization::identifiers`]; ns each).
    ///
    /// [`Realization::identifiers`]: crate::realization::Realization::identifiers
    pub signal_ns: u64,
    /// Interrupt controller: signalling a guest on another CPU (ns each).
    pub signal_far_ns: u64,
    /// A hypervisor that is itself a VM: its timer's interrupt, and a pass of its switch
    /// ([`Guest::hypervisor_poll_ns`]; ns each).
    ///
    /// [`Guest::hypervisor_poll_ns`]: crate::scenario::Guest::hypervisor_poll_ns
    pub hypervisor_timer_ns: u64,
    /// Guest: merging a received segment into earlier ones, without its bytes (LRO; ns each).
    pub merge_ns: u64,
}

impl Profile {
    /// Fields that a profile may omit (then 0): costs of rare hosts, and tails that are seldom
    /// measured.
    pub const OPTIONAL: [&'static str; 21] = [
        "cold_refill_ns",
        "footprint_permille",
        "signal_ns",
        "signal_far_ns",
        "hypervisor_timer_ns",
        "merge_ns",
        "wakeup_latency_p90_ns",
        "wakeup_latency_p99_ns",
        "timer_late_p90_ns",
        "timer_late_p99_ns",
        "warm_permille",
        "tick_ns",
        "tick_every_ns",
        "settle_ns",
        "timer_set_ns",
        "timer_fired_ns",
        "timer_missed_ns",
        "call_busy_ns",
        "kick_busy_ns",
        "interrupt_busy_ns",
        "poll_end_busy_ns",
    ];

    /// Returns round numbers for tests. **No machine gave them**, and results from them describe
    /// none.
    pub const fn example() -> Self {
        Self {
            scheduling: Scheduling {
                slice_ns: 3_000_000,
                granularity_ns: 1_000_000,
                switch_ns: 1_000,
                llc_refill_ns: 5_000,
                socket_refill_ns: 10_000,
                cold_refill_ns: 0,
                footprint_permille: 0,
                smt_permille: 600,
            },
            wakeup_latency_ns: 2_000,
            wakeup_latency_p90_ns: 0,
            wakeup_latency_p99_ns: 0,
            timer_late_ns: 2_000,
            timer_late_p90_ns: 0,
            timer_late_p99_ns: 0,
            warm_permille: 0,
            tick_ns: 0,
            tick_every_ns: 0,
            sleep_ns: 1_000,
            settle_ns: 0,
            timer_set_ns: 0,
            timer_fired_ns: 0,
            poll_ns: 300,
            look_ns: 100,
            deadline_ns: 200,
            burst_ns: 100,
            take_ns: 30,
            classify_ns: 10,
            place_ns: 30,
            copy_ps_per_byte: 50,
            publish_ns: 10,
            call_ns: 1_000,
            call_busy_ns: 0,
            uplink_interrupt_ns: 2_000,
            uplink_take_ns: 500,
            uplink_place_ns: 500,
            timer_missed_ns: 0,
            interrupt_ns: 4_000,
            interrupt_busy_ns: 0,
            guest_timer_ns: 2_000,
            poll_end_ns: 300,
            poll_end_busy_ns: 0,
            receive_ns: 700,
            receive_ps_per_byte: 100,
            send_ns: 700,
            send_ps_per_byte: 100,
            kick_ns: 2_000,
            kick_busy_ns: 0,
            far_cache_ns: 100,
            far_socket_ns: 200,
            signal_ns: 2_000,
            signal_far_ns: 3_000,
            hypervisor_timer_ns: 4_000,
            merge_ns: 150,
        }
    }

    /// Returns a worker's cost of forwarding a frame between uplinks and guests, without the
    /// burst's cost (ns).
    pub fn forward_ns(&self, bytes: u32, from_uplink: bool, to_uplink: bool) -> u64 {
        self.take_ns(bytes, from_uplink) + self.place_ns(bytes, to_uplink)
    }

    /// Returns the part of that cost up to the choice of the receiver (ns).
    pub(crate) fn take_ns(&self, bytes: u32, from_uplink: bool) -> u64 {
        // A frame from an uplink is first read into the host's memory.
        let read_ns = || self.uplink_take_ns + bytes_ns(bytes, self.copy_ps_per_byte);
        self.classify_ns + if from_uplink { read_ns() } else { self.take_ns }
    }

    /// Returns the rest of that cost (ns).
    pub(crate) fn place_ns(&self, bytes: u32, to_uplink: bool) -> u64 {
        let place_ns = if to_uplink { self.uplink_place_ns } else { self.place_ns };
        place_ns + bytes_ns(bytes, self.copy_ps_per_byte) + self.publish_ns
    }

    /// Returns the part of a sleep's cost on a CPU that was idle for `idle_ns` before (ns).
    pub(crate) fn after_idle_ns(&self, cost_ns: u64, idle_ns: u64) -> u64 {
        if self.warm_permille == 0 {
            return cost_ns;
        }
        let warm_ns = cost_ns.saturating_mul(self.warm_permille) / 1_000;
        let more_ns = cost_ns.saturating_sub(warm_ns);
        warm_ns + more_ns.saturating_mul(idle_ns.min(COLD_NS)) / COLD_NS
    }
}

/// Names each cost once. The scheduler's costs come first.
macro_rules! by_name {
    ($($cost:ident)*) => {
        impl Profile {
            /// Builds a profile from the numbers of `value`, which gets the names of [`Profile::fields`].
            ///
            /// # Errors
            /// The first error of `value`.
            pub fn from_fields<E>(
                mut value: impl FnMut(&'static str) -> Result<u64, E>,
            ) -> Result<Self, E> {
                let permille = |value| u32::try_from(value).unwrap_or(u32::MAX);
                Ok(Self {
                    scheduling: Scheduling {
                        slice_ns: value("slice_ns")?,
                        granularity_ns: value("granularity_ns")?,
                        switch_ns: value("switch_ns")?,
                        llc_refill_ns: value("llc_refill_ns")?,
                        socket_refill_ns: value("socket_refill_ns")?,
                        cold_refill_ns: value("cold_refill_ns")?,
                        footprint_permille: permille(value("footprint_permille")?),
                        smt_permille: permille(value("smt_permille")?),
                    },
                    $($cost: value(stringify!($cost))?,)*
                })
            }

            /// Returns every number with its name.
            pub fn fields(&self) -> Vec<(&'static str, u64)> {
                let it = &self.scheduling;
                vec![
                    ("slice_ns", it.slice_ns),
                    ("granularity_ns", it.granularity_ns),
                    ("switch_ns", it.switch_ns),
                    ("llc_refill_ns", it.llc_refill_ns),
                    ("socket_refill_ns", it.socket_refill_ns),
                    ("cold_refill_ns", it.cold_refill_ns),
                    ("footprint_permille", it.footprint_permille.into()),
                    ("smt_permille", it.smt_permille.into()),
                    $((stringify!($cost), self.$cost),)*
                ]
            }
        }
    };
}

by_name! {
    wakeup_latency_ns wakeup_latency_p90_ns wakeup_latency_p99_ns timer_late_ns timer_late_p90_ns
    timer_late_p99_ns warm_permille tick_ns tick_every_ns sleep_ns settle_ns timer_set_ns
    timer_fired_ns poll_ns look_ns deadline_ns burst_ns take_ns classify_ns place_ns
    copy_ps_per_byte publish_ns call_ns call_busy_ns uplink_interrupt_ns uplink_take_ns
    uplink_place_ns timer_missed_ns interrupt_ns interrupt_busy_ns guest_timer_ns poll_end_ns
    poll_end_busy_ns receive_ns receive_ps_per_byte send_ns send_ps_per_byte kick_ns kick_busy_ns
    far_cache_ns far_socket_ns signal_ns signal_far_ns hypervisor_timer_ns merge_ns
}

/// Returns the time of `bytes` at `ps_per_byte` (ns).
pub(crate) fn bytes_ns(bytes: u32, ps_per_byte: u64) -> u64 {
    u64::from(bytes).saturating_mul(ps_per_byte) / 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_costs_less_after_a_short_one() {
        let profile = Profile { warm_permille: 600, ..Profile::example() };
        let costs = [0, 75_000, 150_000, u64::MAX].map(|idle| profile.after_idle_ns(1_000, idle));
        assert_eq!(costs, [600, 800, 1_000, 1_000]);
        assert_eq!(Profile::example().after_idle_ns(1_000, 0), 1_000);
    }

    #[test]
    fn a_profile_is_what_its_fields_say() {
        let whole = Profile::example();
        let fields = whole.fields();
        let value =
            |name| fields.iter().find(|field| field.0 == name).map(|field| field.1).ok_or(());
        assert_eq!(Profile::from_fields(value), Ok(whole));
    }
}
