//! Storms of broadcasts and floods.

use std::{path::Path, time::Duration};

use crate::{
    attack,
    attack::{Attack, Field},
    front::{
        Strike,
        frame::{BROADCAST, EXPERIMENTAL, Header, Mac, frame},
        guest::{Guest, Plan},
    },
};

/// The attacks of the class.
pub const ALL: &[Attack] = &[
    attack!(broadcasts_without_pause, "sends broadcasts as fast as they are taken, under storm control",
        own_share: "what it sends is charged to it, dropped or not"),
    attack!(multicasts_without_pause, "sends to groups as fast as frames are taken, under storm control",
        own_share: "what it sends is charged to it, dropped or not"),
    attack!(unknown_stations_without_pause, "sends to stations that nobody knows, under storm control",
        own_share: "what it sends is charged to it, dropped or not"),
    attack!(
        broadcasts_of_two_thousand_a_second,
        "sends broadcasts at a modest rate, twenty times what it may"
    ),
    attack!(
        broadcasts_by_20_front_ends,
        "sends broadcasts from 20 front ends, together 2,000 a second"
    ),
    attack!(broadcasts_of_60_000_bytes, "sends the largest broadcasts there are, at what it may"),
    attack!(arp_for_everybody, "asks by ARP for all addresses of a /16"),
    attack!(broadcasts_without_storm_control, "the storm where nothing is configured against it",
        own_share: "all copies are charged to who sends; what comes to the victims is theirs to limit"),
];

/// Sends the frames of `make`, and repeats them when they have been used. After each full ring, the attack pauses.
fn storm(
    field: &Field,
    socket: &Path,
    pause: Duration,
    make: impl FnMut(u16) -> Vec<u8>,
) -> Strike {
    let guest = Guest::attach(socket, Plan::default())?;
    let mut make = make;
    guest.load(1, |slot| (Header::default(), make(slot)));
    loop {
        if guest.pump(1) > 0 {
            field.struck();
        }
        guest.repost(0);
        std::thread::sleep(pause);
    }
}

/// The pause of a storm at full speed. It leaves CPU time to the threads that use the frames.
const FAST: Duration = Duration::from_micros(20);

fn to(mac: Mac) -> Vec<u8> {
    frame(mac, Guest::mac(0), EXPERIMENTAL, 60)
}

fn broadcasts_without_pause(field: &Field) -> Strike {
    storm(field, &field.evil(0), FAST, |_| to(BROADCAST))
}

fn multicasts_without_pause(field: &Field) -> Strike {
    storm(field, &field.evil(0), FAST, |slot| to([1, 0, 0x5e, 0, 0, slot as u8]))
}

fn unknown_stations_without_pause(field: &Field) -> Strike {
    storm(field, &field.evil(0), FAST, |slot| to([2, 9, 9, 9, 9, slot as u8]))
}

/// A guest that sends `frame` in bursts of `each`.
fn at_times(field: &Field, number: usize, frame: &[u8], each: u16, pause: Duration) -> Strike {
    let guest = Guest::attach(&field.evil(number), Plan { size: 64, ..Plan::default() })?;
    loop {
        for _ in 0..each {
            guest.send(1, Header::default(), frame);
        }
        guest.taken(1, "broadcasts")?;
        guest.repost(0);
        field.struck();
        std::thread::sleep(pause);
    }
}

fn broadcasts_of_two_thousand_a_second(field: &Field) -> Strike {
    at_times(field, 0, &to(BROADCAST), 20, Duration::from_millis(10))
}

fn broadcasts_by_20_front_ends(field: &Field) -> Strike {
    std::thread::scope(|scope| {
        for number in 0..20 {
            scope.spawn(move || {
                let sent = frame(BROADCAST, Guest::mac(number as u8), EXPERIMENTAL, 60);
                at_times(field, number, &sent, 10, Duration::from_millis(100))
            });
        }
    });
    Ok(())
}

fn broadcasts_of_60_000_bytes(field: &Field) -> Strike {
    let guest = Guest::attach(&field.evil(0), Plan { size: 64, ..Plan::default() })?;
    let at = guest.buffer(1, 0);
    guest.memory.set(at + 12, &frame(BROADCAST, Guest::mac(0), EXPERIMENTAL, 60_000));
    loop {
        guest.ring(1).set(0, guest.buffer_address(1, 0), 60_012, 0, 0);
        guest.ring(1).offer(0);
        guest.kick(1);
        guest.taken(1, "a large broadcast")?;
        guest.repost(0);
        field.struck();
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn arp_for_everybody(field: &Field) -> Strike {
    let ask = |slot: u16| {
        let mut arp = frame(BROADCAST, Guest::mac(0), 0x0806, 14);
        arp.extend([0, 1, 8, 0, 6, 4, 0, 1]);
        arp.extend(Guest::mac(0));
        arp.extend([10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, slot as u8, 9]);
        arp.resize(60, 0);
        arp
    };
    storm(field, &field.evil(0), Duration::from_millis(5), ask)
}

fn broadcasts_without_storm_control(field: &Field) -> Strike {
    storm(field, &field.socket("stormy"), FAST, |_| to(BROADCAST))
}
