//! A mirror's guest: it gets copies of another guest's frames, and does not receive them as it should.

use std::{
    io::Write,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use rustix::fs::{FallocateFlags, fallocate, ftruncate};

use crate::{
    attack,
    attack::{Attack, Field},
    control::{ask, open, request},
    floods::{load_large, loaded, pour},
    front::{
        Strike,
        frame::{EXPERIMENTAL, HEADER_LEN, Header, frame, tagged},
        guest::{BUFFERS, GUEST, Guest, Plan},
        harm,
        ring::WRITE,
    },
    measure::switch::ADDRESSES,
};

/// The class. The guest that floods a mirror sends its frames to no other port.
pub const ALL: &[Attack] = &[
    attack!(mirror_without_buffers, "has a flood mirrored to a guest that never gives a buffer back",
        own_share: "the flood is charged to who sends it, copies included"),
    attack!(mirror_that_takes_all, "has a flood mirrored to a guest that takes what it can",
        own_share: "the flood is charged to who sends it, copies included"),
    attack!(mirror_of_large_frames, "has packets of 60,000 bytes mirrored to a guest that must have them cut",
        own_share: "the flood is charged to who sends it; who mirrors it chose to"),
    attack!(
        mirror_with_buffers_outside_memory,
        "gives a mirror receive buffers that are not there"
    ),
    attack!(mirror_with_buffers_of_a_byte, "gives a mirror receive buffers of one byte"),
    attack!(
        mirror_whose_index_jumps,
        "makes more receive buffers available to a mirror than there are"
    ),
    attack!(mirror_whose_memory_goes, "cuts a mirror's memory to nothing while copies come"),
    attack!(
        mirror_with_a_hole_of_a_gigabyte,
        "punches holes of 1 GiB into a mirror's memory while copies come",
        outlasts
    ),
    attack!(mirror_that_comes_and_goes, "attaches a mirror's guest and hangs up, under copies"),
    attack!(mirror_that_sends, "sends from a mirror, untagged, tagged and as somebody else"),
    attack!(
        mirrors_that_are_made_and_removed,
        "adds and removes a mirror twice a second, and asks for mirrors that must not be",
        administers: "each change has its log lines"
    ),
];

/// A frame of `watched`. Its destination is unknown, and storm control drops nearly all copies.
fn speech() -> (Header, Vec<u8>) {
    (Header::default(), frame([2, 9, 9, 9, 9, 9], Guest::mac(0), EXPERIMENTAL, 60))
}

fn watched(field: &Field) -> Strike<Guest> {
    let guest = Guest::attach(&field.socket("watched"), Plan::default())?;
    loaded(&guest, speech);
    Ok(guest)
}

fn mirror(field: &Field, plan: Plan) -> Strike<Guest> {
    Guest::attach(&field.socket("mirror"), plan)
}

/// A mirror whose guest `wrecks` its receive buffers before the first copy. weir must stop it at that copy.
fn wrecked(field: &Field, why: &str, wreck: impl Fn(&Guest, u16)) -> Strike {
    let (to, from) = (mirror(field, Plan::default())?, watched(field)?);
    (0..to.ring(0).size).for_each(|slot| wreck(&to, slot));
    from.pump(1);
    to.stopped(why)
}

fn mirror_without_buffers(field: &Field) -> Strike {
    let (_to, from) = (mirror(field, Plan::default())?, watched(field)?);
    pour(field, &from, None)
}

fn mirror_that_takes_all(field: &Field) -> Strike {
    let (to, from) = (mirror(field, Plan::default())?, watched(field)?);
    pour(field, &from, Some(&to))
}

fn mirror_of_large_frames(field: &Field) -> Strike {
    // The mirror has negotiated no receive offload.
    let to = mirror(field, Plan::default())?;
    let plan = Plan { memory: 32 << 20, size: 64, ..Plan::default() };
    let from = Guest::attach(&field.socket("watched"), plan)?;
    load_large(&from, [2, 9, 9, 9, 9, 9]);
    pour(field, &from, Some(&to))
}

fn mirror_with_buffers_outside_memory(field: &Field) -> Strike {
    wrecked(field, "a mirror's receive buffer outside memory", |guest, slot| {
        guest.ring(0).set(slot, GUEST + guest.memory.len() as u64 - 1, 4096, WRITE, 0);
    })
}

fn mirror_with_buffers_of_a_byte(field: &Field) -> Strike {
    let (to, from) = (mirror(field, Plan::default())?, watched(field)?);
    for slot in 0..to.ring(0).size {
        to.ring(0).set(slot, to.buffer_address(0, slot), 1, WRITE, 0);
    }
    for _ in 0..20 {
        from.pump(1);
        to.repost(0);
        std::thread::sleep(Duration::from_millis(2));
    }
    to.link.still_served("a mirror's receive buffers of a byte")
}

fn mirror_whose_index_jumps(field: &Field) -> Strike {
    let (to, from) = (mirror(field, Plan::default())?, watched(field)?);
    to.ring(0).set_index(30_000);
    from.pump(1);
    to.stopped("a mirror's index that jumps")
}

fn mirror_whose_memory_goes(field: &Field) -> Strike {
    let (to, from) = (mirror(field, Plan::default())?, watched(field)?);
    from.pump(1);
    ftruncate(to.memory.file(), 0)?;
    from.pump(1);
    to.stopped("a mirror's memory that is gone")
}

fn mirror_with_a_hole_of_a_gigabyte(field: &Field) -> Strike {
    const FILE: u64 = 1 << 30;
    let plan = Plan { memory: 1 << 30, ..Plan::default() };
    let (to, from, stop) = (mirror(field, plan)?, watched(field)?, AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                from.pump(1);
                to.repost(0);
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let punched = || -> Strike {
            fallocate(to.memory.file(), FallocateFlags::empty(), 0, FILE)?;
            field.struck();
            // The rings stay.
            Ok(fallocate(to.memory.file(), hole, BUFFERS as u64, FILE - BUFFERS as u64)?)
        };
        let done = (0..10).try_for_each(|_| punched());
        stop.store(true, Ordering::Relaxed);
        done
    })
}

fn mirror_that_comes_and_goes(field: &Field) -> Strike {
    let from = watched(field)?;
    for _ in 0..20 {
        let to = mirror(field, Plan::default())?;
        from.pump(1);
        to.repost(0);
        field.struck();
    }
    Ok(())
}

fn mirror_that_sends(field: &Field) -> Strike {
    let to = mirror(field, Plan::default())?;
    let [victim, ..] = ADDRESSES;
    let other = field.plain()?;
    other.send(1, Header::default(), &frame(Guest::mac(1), Guest::mac(0), EXPERIMENTAL, 60));
    other.taken(1, "a frame")?;
    for from in [Guest::mac(7), victim] {
        for bytes in [
            frame([0xff; 6], from, EXPERIMENTAL, 60),
            frame(Guest::mac(0), from, EXPERIMENTAL, 60),
            tagged(Guest::mac(0), from, &[(0x8100, 1)], 60),
            tagged(Guest::mac(0), from, &[(0x8100, 0)], 60),
        ] {
            to.send(1, Header::default(), &bytes);
            to.taken(1, "a mirror's frame")?;
        }
    }
    std::thread::sleep(Duration::from_millis(5));
    // No other guest sends this ethertype.
    let arrived = (0..other.ring(0).size).any(|slot| {
        let ethertype = other.memory.u16_at(other.buffer(0, slot) + HEADER_LEN + 12);
        ethertype == EXPERIMENTAL.to_be()
    });
    if arrived { harm("a mirror's frames arrive somewhere") } else { Ok(()) }
}

fn mirrors_that_are_made_and_removed(field: &Field) -> Strike {
    let from = watched(field)?;
    let socket = open(field)?;
    let made = field
        .weir()
        .args(["vif", "add", "guest", "mirror=watched", "--control"])
        .arg(field.control())
        .output()?;
    if !made.status.success() {
        return harm(String::from_utf8_lossy(&made.stderr).into_owned());
    }
    from.pump(1);
    for (vif, of) in [("guest", "guest"), ("watched", "a"), ("a", "guest"), ("b", "mirror")] {
        let body = format!("{{\"vlan\":{{\"mirror\":[\"{of}\"]}}}}");
        let (status, answer) = ask(&socket, &request(&format!("PATCH /v1/vifs/{vif}"), &body))?;
        if status == 200 {
            return harm(format!("{vif} becomes a mirror of {of}: {answer}"));
        }
    }
    field.struck();
    std::thread::sleep(Duration::from_millis(250));
    (&socket).write_all(request("DELETE /v1/vifs/guest", "").as_bytes())?;
    std::thread::sleep(Duration::from_millis(250));
    Ok(())
}
