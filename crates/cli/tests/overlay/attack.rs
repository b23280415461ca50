//! An attacker in one tenant's network, as a host or as a guest, sends arbitrary frames: none of them reaches another
//! tenant.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use weir_testing::eventually;
use weir_wire::{Mac, Offload};

use crate::bed::{EXPERIMENTAL, Guest, Underlay, datagram, mac, vif};

/// A mark in every frame of the attacker.
const MARK: &[u8] = b"of the tenant blue";
const BLUE: u32 = 100;
const RED: u32 = 200;
const ROUNDS: usize = 100;
const FRAMES: usize = 20;

/// Pseudo-random numbers that are the same in each run (xorshift64).
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 as usize % end
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// A frame with arbitrary addresses, with tags, as ARP, or with a VXLAN packet for the other tenant inside.
    fn frame(&mut self) -> Vec<u8> {
        let dst = self.of(&[mac(1), mac(2), mac(3), Mac::BROADCAST, Mac([0x33, 0x33, 0, 0, 0, 1])]);
        let src = self.of(&[mac(1), mac(2), mac(3), mac(77), Mac([0; 6]), Mac::BROADCAST]);
        let mut frame = [dst.0, src.0].concat();
        for _ in 0..self.below(3) {
            // Networks are numbered from 0, in the place of a trunk's tags.
            let tag = self.of(&[0, 1, 2, 100, 200, 4095]) as u16;
            frame.extend(self.of(&[[0x81, 0], [0x88, 0xa8]]));
            frame.extend(tag.to_be_bytes());
        }
        match self.below(3) {
            0 => frame.extend(EXPERIMENTAL),
            1 => {
                let asks = [&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1][..], &src.0, &[10, 0, 0, 1]].concat();
                frame.extend([&asks[..], &[0; 6], &[10, 0, 0, 2]].concat());
            }
            _ => {
                let to = self.of(&[1, 2]);
                let ip = [0x45, 0, 0, 100, 0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 2, 192, 0, 2, to];
                let udp = [0x12, 0xb5, 0x12, 0xb5, 0, 80, 0, 0];
                let inner = [&mac(1).0[..], &mac(2).0, &EXPERIMENTAL, MARK].concat();
                frame.extend([&[8, 0][..], &ip, &udp, &datagram(RED, &inner)].concat());
            }
        }
        frame.extend(MARK);
        frame.resize(60.max(frame.len()), 0);
        frame
    }

    /// A datagram with such a frame, for a network of its sender or another one: fragmented, truncated, or with other
    /// flags.
    fn datagram(&mut self) -> Vec<u8> {
        let vni = self.of(&[BLUE, RED, RED, 0, 300, 0xff_ffff]);
        let mut bytes = datagram(vni, &self.frame());
        match self.below(6) {
            0 => bytes.truncate(self.below(60)),
            1 => bytes[self.below(8)] ^= 1 << self.below(8),
            // The datagram exceeds the underlay's MTU, so the sender's host fragments it.
            2 => bytes.resize(3000, 0),
            3 => bytes = datagram(BLUE, &bytes),
            _ => {}
        }
        bytes
    }
}

const AFTER: &str = "after the attack";

/// The number of the attacker's frames that a guest received, and true if its own tenant's last frame has arrived.
fn count(guest: &mut Guest) -> (usize, bool) {
    let (mut count, mut is_after, mut frame) = (0, false, Vec::new());
    while guest.pair.recv_into(&mut frame).is_some() {
        let has = |words: &[u8]| frame.windows(words.len()).any(|it| it == words);
        count += usize::from(has(MARK));
        is_after |= has(AFTER.as_bytes());
    }
    (count, is_after)
}

#[test]
fn root_no_frame_of_any_attack_is_delivered_to_a_wrong_tenant() {
    if !weir_testing::is_root("network namespaces") {
        return;
    }
    let mut underlay = Underlay::new(3);
    for (n, other) in [(1, 2), (2, 1)] {
        let here = &underlay.hosts[n - 1];
        let red = vif(here, "red", "red", Some(mac(n as u8)));
        // This guest may send from any address.
        let blue = vif(here, "blue", "blue", None) + "mac_check = false\n";
        let networks: [(&str, u32, &[usize]); 2] =
            [("blue", BLUE, &[other, 3]), ("red", RED, &[other])];
        let config = Underlay::config(n, &networks, &(red + &blue));
        underlay.hosts[n - 1].start_weir(&config);
    }
    let [one, two, three] = &underlay.hosts[..] else { panic!("three hosts") };
    let [mut red1, mut red2] = [(one, 1), (two, 2)].map(|(host, n)| host.guest("red", mac(n)));
    let [mut blue1, mut blue2] = [(one, 1), (two, 2)].map(|(host, n)| host.guest("blue", mac(n)));
    let outside = three.within(|| UdpSocket::bind((Ipv4Addr::new(192, 0, 2, 3), 0)).unwrap());

    let mut chance = Chance(0x5eed);
    let (mut wrong, mut right, mut sent) = (0, 0, 0);
    for _ in 0..ROUNDS {
        for _ in 0..FRAMES {
            for to in ["192.0.2.1:4789", "192.0.2.2:4789"] {
                sent += usize::from(outside.send_to(&chance.datagram(), to).is_ok());
            }
            sent += usize::from(blue1.pair.send(&chance.frame(), &Offload::NONE).is_ok());
        }
        blue1.pair.flush();
        wrong += count(&mut red1).0 + count(&mut red2).0;
        right += count(&mut blue1).0 + count(&mut blue2).0;
    }
    // All frames have arrived when the tenants' own frames, which follow in order, have arrived.
    eventually("red hears itself", || {
        red1.say(Mac::BROADCAST, AFTER);
        std::thread::sleep(Duration::from_millis(50));
        let (marked, is_after) = count(&mut red2);
        wrong += marked;
        is_after.then_some(())
    });
    eventually("blue hears itself", || {
        blue1.say(Mac::BROADCAST, AFTER);
        std::thread::sleep(Duration::from_millis(50));
        let (marked, is_after) = count(&mut blue2);
        right += marked;
        is_after.then_some(())
    });
    wrong += count(&mut red1).0;
    println!("frames delivered to a wrong tenant: {wrong} of {sent} sent, {right} to their own");
    assert_eq!(wrong, 0);
    assert!(sent > 4000 && right > 100, "{sent} sent, {right} delivered to their own tenant");
    for reason in ["remote_unknown", "network_unknown", "bad_encapsulation"] {
        assert!(one.dropped("overlay", reason) > 100, "{reason}");
    }
}
