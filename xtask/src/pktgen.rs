//! Linux's own packet generator in a guest: small packets from the guest's kernel, where a program's
//! system call for each would be what is measured.

use std::time::Duration;

use crate::{
    address,
    error::{Error, Result},
    qemu::Guest,
};

/// Where the module lies in a guest, which loads it for this only.
const MODULE: &str = "/modules/on-demand/pktgen.ko";

/// Before it counts, and behind that while it still sends (s).
const MARGIN_SECONDS: u64 = 1;

/// What a command may take longer than it says: a guest under load is slow.
const GRACE: Duration = Duration::from_secs(60);

/// UDP frames of `frame_bytes` (with check sequence) from machine 0 to machine 1, as fast as the kernel
/// of the sender gives them to its driver: how many a second come out of the receiver's driver.
pub fn flood(
    sender: &mut Guest,
    receiver: &mut Guest,
    frame_bytes: u32,
    seconds: u64,
) -> Result<f64> {
    let (ip, mac) = (address::ip(1), address::mac(1_u8));
    // pktgen counts a frame without its check sequence.
    let size = frame_bytes - 4;
    let sends_for = seconds + 2 * MARGIN_SECONDS;
    let sending = sender.start(&format!(
        "insmod {MODULE} && cd /proc/net/pktgen && echo add_device eth0 > kpktgend_0 && \
         for set in 'count 0' 'delay 0' 'pkt_size {size}' 'dst {ip}' 'dst_mac {mac}'; \
         do echo $set > eth0; done; (sleep {sends_for}; echo stop > pgctrl) & \
         echo start > pgctrl; wait"
    ))?;
    let look = "cat /sys/class/net/eth0/statistics/rx_packets /proc/uptime";
    let printed = receiver.run(
        &format!("sleep {MARGIN_SECONDS}; {look}; sleep {seconds}; {look}"),
        Duration::from_secs(sends_for) + GRACE,
    )?;
    sender.finish(sending, Duration::from_secs(sends_for) + GRACE)?;
    per_second(&printed).ok_or_else(|| Error::parse("packets and uptime, twice", &*printed))
}

/// From two looks: packets so far, then the uptime (s) with a second number behind it.
fn per_second(printed: &str) -> Option<f64> {
    let numbers: Vec<f64> = printed
        .lines()
        .map(|line| line.split_whitespace().next()?.parse().ok())
        .collect::<Option<_>>()?;
    let [packets_before, start, packets_after, end] = numbers.try_into().ok()?;
    Some((packets_after - packets_before) / (end - start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_packets_by_the_receivers_clock() {
        assert_eq!(per_second("100\n10.5 3.0\n5100\n13.0 3.1\n"), Some(2000.0));
        assert_eq!(per_second("100\n10.5 3.0\n"), None);
        assert_eq!(per_second("100\n10.5\ncat: no such file\n13.0\n"), None);
    }
}
