//! Linux's packet generator (pktgen) in a guest: small packets from the guest's kernel. A program in user space would
//! measure its own system call for each packet.

use std::time::Duration;

use crate::{
    address,
    error::{Error, Result},
    qemu::Guest,
};

/// The module's path in a guest. It is loaded only for pktgen.
const MODULE: &str = "/modules/on-demand/pktgen.ko";

/// Time before and after the count while packets are sent (s).
const MARGIN_SECONDS: u64 = 1;

/// Longest time of a command beyond its own duration: a guest under load is slow.
const GRACE: Duration = Duration::from_secs(60);

/// Packets that the receiver's driver has delivered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Received {
    /// Packets a second.
    pub packets_per_second: f64,
    /// Interrupts of the receiver's virtio devices per packet.
    pub interrupts_per_packet: f64,
}

/// The result of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sent {
    /// The receiver's counts in the steady state.
    pub received: Received,
    /// Share of all sent packets that the receiver's driver has delivered.
    pub arrived: f64,
}

/// The sender's rate.
#[derive(Clone, Copy, Debug)]
pub enum Pace {
    /// The rate at which the sender's kernel gives frames to its driver.
    Flood,
    /// This many packets a second, evenly spaced.
    PerSecond(u32),
}

/// Sends UDP frames of `frame_bytes` (with check sequence) from machine 0 to machine 1.
pub fn send(
    sender: &mut Guest,
    receiver: &mut Guest,
    pace: Pace,
    frame_bytes: u32,
    seconds: u64,
) -> Result<Sent> {
    let pace = match pace {
        Pace::Flood => String::from("delay 0"),
        Pace::PerSecond(rate) => format!("ratep {rate}"),
    };
    let (ip, mac) = (address::ip(1), address::mac(1_u8));
    // pktgen counts a frame without its check sequence.
    let size = frame_bytes - 4;
    let sends_for = seconds + 2 * MARGIN_SECONDS;
    let first = Look::at(receiver)?;
    let sending = sender.start(&format!(
        "insmod {MODULE} && cd /proc/net/pktgen && echo add_device eth0 > kpktgend_0 && \
         for set in 'count 0' '{pace}' 'pkt_size {size}' 'dst {ip}' 'dst_mac {mac}'; \
         do echo $set > eth0; done; (sleep {sends_for}; echo stop > pgctrl) & \
         echo start > pgctrl; wait"
    ))?;
    let printed = receiver.run(
        &format!("sleep {MARGIN_SECONDS}; {LOOK}; sleep {seconds}; {LOOK}"),
        Duration::from_secs(sends_for) + GRACE,
    )?;
    sender.finish(sending, Duration::from_secs(sends_for) + GRACE)?;
    let [before, after] = Look::two(&printed)
        .ok_or_else(|| Error::parse("packets, uptime and interrupts, twice", &*printed))?;
    let printed = sender.run("cat /proc/net/pktgen/eth0; cd /; rmmod pktgen", GRACE)?;
    let sent = sent(&printed).ok_or_else(|| Error::parse("pktgen's counts", &*printed))?;
    let arrived = (Look::at(receiver)?.packets - first.packets) / sent;
    Ok(Sent { received: after.since(before), arrived })
}

/// Packets sent, from pktgen's `     pkts-sofar: 100000  errors: 0`.
fn sent(printed: &str) -> Option<f64> {
    printed.split("pkts-sofar:").nth(1)?.split_whitespace().next()?.parse().ok()
}

/// Prints the received packets, the uptime (s) followed by a second number, and the interrupts of the virtio devices
/// on all CPUs.
const LOOK: &str = "cat /sys/class/net/eth0/statistics/rx_packets /proc/uptime; \
    awk '/virtio/ {for (i = 2; $i ~ /^[0-9]+$/; i++) sum += $i} END {print sum + 0}' \
    /proc/interrupts";

/// A guest's counts so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Look {
    /// Received packets.
    pub packets: f64,
    /// Uptime (s).
    pub uptime: f64,
    /// Interrupts of the guest's virtio devices.
    pub interrupts: f64,
}

impl Look {
    /// Reads the counts of `guest`, whose shell is free.
    pub fn at(guest: &mut Guest) -> Result<Self> {
        let printed = guest.run(LOOK, GRACE)?;
        Self::parse(&printed)
            .ok_or_else(|| Error::parse("packets, uptime and interrupts", &*printed))
    }

    fn two(printed: &str) -> Option<[Self; 2]> {
        let lines: Vec<_> = printed.lines().collect();
        let (before, after) = lines.split_at_checked(lines.len() / 2)?;
        Some([Self::parse(&before.join("\n"))?, Self::parse(&after.join("\n"))?])
    }

    fn parse(printed: &str) -> Option<Self> {
        let numbers: Vec<f64> = printed
            .lines()
            .map(|line| line.split_whitespace().next()?.parse().ok())
            .collect::<Option<_>>()?;
        let [packets, uptime, interrupts] = numbers.try_into().ok()?;
        Some(Self { packets, uptime, interrupts })
    }

    /// The difference between an earlier reading and this one.
    pub fn since(self, before: Self) -> Received {
        let packets = self.packets - before.packets;
        Received {
            packets_per_second: packets / (self.uptime - before.uptime),
            interrupts_per_packet: (self.interrupts - before.interrupts) / packets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_is_read_from_pktgens_counts() {
        let printed = "Params: count 0\nCurrent:\n     pkts-sofar: 81234  errors: 0\n";
        assert_eq!(sent(printed), Some(81_234.0));
        assert_eq!(sent("Result: Idle"), None);
    }

    #[test]
    fn rates_are_by_the_receivers_own_clock_and_counts() {
        let [before, after] =
            Look::two("100\n10.5 3.0\n40\n5100\n13.0 3.1\n540\n").expect("two looks");
        let received = after.since(before);
        assert_eq!(received, Received { packets_per_second: 2000.0, interrupts_per_packet: 0.1 });
        assert_eq!(Look::two("100\n10.5 3.0\n"), None);
        assert_eq!(Look::two("100\n10.5\n4\ncat: no such file\n13.0\n4\n"), None);
    }
}
