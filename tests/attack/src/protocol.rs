//! Messages that violate the protocol, and unexpected orders of messages.

use std::{os::fd::AsFd, time::Duration};

use rustix::event::{EventfdFlags, eventfd};

use crate::{
    attack,
    attack::{Attack, Field},
    front::{
        Strike,
        guest::{
            EVENT_IDX, Guest, IN_ORDER, INDIRECT_DESC, MRG_RXBUF, PACKED, PROTOCOL, Plan, VERSION_1,
        },
        link::{
            Link, NEED_REPLY, REPLY, VERSION, message, one_region, region, request, ring_state,
            table,
        },
    },
    random::Random,
};

/// The attacks of the class.
pub const ALL: &[Attack] = &[
    attack!(requests_of_every_number, "sends each request number from 0 to 300 with an empty body"),
    attack!(headers_of_other_versions, "sends headers whose version is not 1"),
    attack!(flags_that_nobody_defined, "sets all other bits of a header"),
    attack!(requests_that_say_they_are_replies, "sets the reply flag on requests"),
    attack!(bodies_larger_than_any, "announces bodies of up to 4 GiB, and sends some of them"),
    attack!(bodies_of_every_wrong_size, "sends each request with bodies of 1 to 400 bytes"),
    attack!(messages_that_stop_half_way, "stops in the middle of headers and bodies, and stays"),
    attack!(messages_byte_by_byte, "sends a message in as many pieces as it has bytes"),
    attack!(replies_that_nobody_reads, "asks without pause and never reads an answer"),
    attack!(a_front_end_that_leaves_its_answers, "hangs up with answers on their way"),
    attack!(ring_numbers_out_of_range, "names rings that there are not, up to 2^32 - 1"),
    attack!(ring_sizes_that_are_none, "sets sizes of 0, 3, 65,535, 65,536 and 2^31"),
    attack!(
        ring_addresses_that_wrap_around,
        "puts parts of rings at the end of all addresses and outside memory"
    ),
    attack!(ring_addresses_that_are_odd, "puts parts of rings at addresses that are not aligned"),
    attack!(rings_set_up_in_every_order, "sends a ring's messages in all wrong orders"),
    attack!(bases_that_lie, "lets rings go on at places where they never were"),
    attack!(features_that_nobody_offered, "acknowledges all bits of both sets of features"),
    attack!(features_that_change_under_traffic, "changes the format of rings that run"),
    attack!(status_by_chance, "writes all bytes as device status while rings run"),
    attack!(resets_under_traffic, "resets the device without pause while rings run"),
    attack!(rings_switched_on_and_off, "enables and disables rings without pause under traffic"),
    attack!(
        rings_stopped_and_started,
        "takes rings out of service and back without pause under traffic"
    ),
    attack!(a_thousand_announcements, "has weir announce a thousand addresses by RARP"),
    attack!(mtus_that_are_none, "sets MTUs of 0, 67, 65,536 and 2^64 - 1"),
    attack!(
        in_flight_areas_that_lie,
        "hands in areas of requests in flight that are short, huge or elsewhere"
    ),
    attack!(
        requests_that_are_not_offered,
        "asks for the dirty log, device configuration, an IOMMU and kicks by message"
    ),
    attack!(
        two_front_ends_at_one_socket,
        "connects while another front end is there, again and again"
    ),
    attack!(half_a_handshake, "hangs up after each message of a handshake"),
    attack!(messages_by_chance, "sends messages, sizes, flags and descriptors by chance"),
];

fn requests_of_every_number(field: &Field) -> Strike {
    for number in 0..300 {
        let link = field.link()?;
        link.flagged(number, VERSION | NEED_REPLY, &[], &[])?;
        let _ = link.ask(request::GET_FEATURES);
        field.struck();
    }
    Ok(())
}

fn headers_of_other_versions(field: &Field) -> Strike {
    for version in [0, 2, 3] {
        let link = field.link()?;
        link.flagged(request::GET_FEATURES, version, &[], &[])?;
        link.hung_up("a header of another version")?;
        field.struck();
    }
    Ok(())
}

fn flags_that_nobody_defined(field: &Field) -> Strike {
    let link = field.link()?;
    link.flagged(request::SET_OWNER, !REPLY, &[], &[])?;
    link.hung_up("undefined flags")
}

fn requests_that_say_they_are_replies(field: &Field) -> Strike {
    let link = field.link()?;
    link.flagged(request::GET_FEATURES, VERSION | REPLY, &[], &[])?;
    link.hung_up("a request that is a reply")
}

fn bodies_larger_than_any(field: &Field) -> Strike {
    for size in [4097_u32, 1 << 20, i32::MAX as u32, u32::MAX] {
        let link = field.link()?;
        let header = [request::SET_CONFIG, VERSION, size].map(u32::to_le_bytes).concat();
        link.raw(&header, &[])?;
        let _ = link.raw(&[0; 65_536], &[]);
        link.hung_up("a body that is too large")?;
        field.struck();
    }
    Ok(())
}

fn bodies_of_every_wrong_size(field: &Field) -> Strike {
    for number in 1..=41 {
        for len in [1, 7, 9, 31, 41, 400] {
            let link = field.link()?;
            link.tell(number, &vec![0xff; len], &[])?;
            let _ = link.ask(request::GET_FEATURES);
            field.struck();
        }
    }
    Ok(())
}

fn messages_that_stop_half_way(field: &Field) -> Strike {
    let whole = message(request::SET_FEATURES, VERSION, &[0; 8]);
    let mut links = Vec::new();
    for (number, len) in (0..).zip([1, 4, 11, 12, 13, 19]) {
        let link = Link::connect(&field.evil(number))?;
        link.raw(&whole[..len], &[])?;
        links.push(link);
        field.struck();
    }
    std::thread::sleep(Duration::from_secs(1));
    Ok(())
}

fn messages_byte_by_byte(field: &Field) -> Strike {
    let link = field.link()?;
    for byte in message(request::GET_FEATURES, VERSION, &[]) {
        link.raw(&[byte], &[])?;
        std::thread::sleep(Duration::from_millis(1));
    }
    link.reply()?;
    Ok(())
}

fn replies_that_nobody_reads(field: &Field) -> Strike {
    let link = field.link()?;
    let many = message(request::GET_FEATURES, VERSION, &[]).repeat(64);
    for _ in 0..2000 {
        link.raw(&many, &[])?;
        field.struck();
    }
    Ok(())
}

fn a_front_end_that_leaves_its_answers(field: &Field) -> Strike {
    let link = field.link()?;
    link.raw(&message(request::GET_FEATURES, VERSION, &[]).repeat(1000), &[])
}

fn ring_numbers_out_of_range(field: &Field) -> Strike {
    for number in [16, 255, 256, 65_536, i32::MAX as u32, u32::MAX] {
        for request in [request::SET_VRING_NUM, request::GET_VRING_BASE, request::SET_VRING_ENABLE]
        {
            let link = field.link()?;
            link.tell_ring(request, number, 1)?;
            link.hung_up("a ring that there is not")?;
            field.struck();
        }
    }
    Ok(())
}

fn ring_sizes_that_are_none(field: &Field) -> Strike {
    for size in [0, 65_535, 65_536, 1 << 31, u32::MAX] {
        let link = field.link()?;
        link.tell_ring(request::SET_VRING_NUM, 0, size)?;
        link.hung_up("a size that is none")?;
        field.struck();
    }
    Ok(())
}

/// Puts ring 1 at `places`, which weir must refuse.
fn misplaced(field: &Field, places: [u64; 3], what: &str) -> Strike {
    let guest = Guest::negotiate(&field.evil(0), Plan::default())?;
    guest.share()?;
    let _ = guest.serve_at(1, places, 0);
    guest.link.hung_up(what)?;
    field.struck();
    Ok(())
}

fn ring_addresses_that_wrap_around(field: &Field) -> Strike {
    let good = Guest::places(1);
    for bad in [0, !15, !4095, good[0] + (1 << 30), good[0] + (8 << 20) - 16] {
        for part in 0..3 {
            let mut places = good;
            places[part] = bad;
            misplaced(field, places, "a part of a ring outside memory")?;
        }
    }
    Ok(())
}

fn ring_addresses_that_are_odd(field: &Field) -> Strike {
    for (part, by) in [(0, 1), (0, 8), (1, 1), (2, 1), (2, 2)] {
        let mut places = Guest::places(1);
        places[part] += by;
        misplaced(field, places, "a part of a ring that is not aligned")?;
    }
    Ok(())
}

fn rings_set_up_in_every_order(field: &Field) -> Strike {
    let mut random = Random::new();
    for _ in 0..20 {
        let guest = Guest::negotiate(&field.evil(0), Plan::default())?;
        let at = Guest::addresses(1, Guest::places(1));
        let mut steps: Vec<u32> = (0..8).collect();
        random.shuffle(&mut steps);
        for step in steps {
            let link = &guest.link;
            let told = match step {
                0 => guest.share(),
                1 => link.tell_ring(request::SET_VRING_NUM, 1, 256),
                2 => link.tell(request::SET_VRING_ADDR, &at, &[]),
                3 => link.tell_ring(request::SET_VRING_BASE, 1, 0),
                4 => link.tell_fd(request::SET_VRING_KICK, 1, Some(guest.kicks[1].as_fd())),
                5 => link.tell_fd(request::SET_VRING_CALL, 1, Some(guest.calls[1].as_fd())),
                6 => link.tell_ring(request::SET_VRING_ENABLE, 1, 1),
                _ => link.tell_ring(request::GET_VRING_BASE, 1, 0),
            };
            guest.kick(1);
            if told.is_err() {
                break;
            }
        }
        field.struck();
    }
    Ok(())
}

fn bases_that_lie(field: &Field) -> Strike {
    for base in [1, 255, 256, 32_768, 65_535, 65_536, u32::MAX] {
        let guest = Guest::negotiate(&field.evil(0), Plan::default())?;
        guest.share()?;
        let _ = guest.serve_at(1, Guest::places(1), base);
        guest.kick(1);
        let _ = guest.link.ask(request::GET_FEATURES);
        field.struck();
    }
    Ok(())
}

fn features_that_nobody_offered(field: &Field) -> Strike {
    for request in [request::SET_FEATURES, request::SET_PROTOCOL_FEATURES] {
        let link = field.link()?;
        link.tell_u64(request, u64::MAX)?;
        link.hung_up("features that were not offered")?;
        field.struck();
    }
    Ok(())
}

fn features_that_change_under_traffic(field: &Field) -> Strike {
    let guest = field.plain()?;
    let features = Plan::default().features;
    for bits in
        [PACKED, IN_ORDER, INDIRECT_DESC, EVENT_IDX, PROTOCOL, MRG_RXBUF, VERSION_1].repeat(20)
    {
        guest.link.tell_u64(request::SET_FEATURES, features ^ bits)?;
        guest.share()?;
        (0..2).for_each(|ring| guest.kick(ring));
        field.struck();
    }
    Ok(())
}

fn status_by_chance(field: &Field) -> Strike {
    let guest = field.plain()?;
    for status in 0..=255 {
        guest.link.tell_u64(request::SET_STATUS, status)?;
        guest.kick(1);
        field.struck();
    }
    guest.link.ask(request::GET_STATUS).map(drop)
}

fn resets_under_traffic(field: &Field) -> Strike {
    let guest = field.plain()?;
    loop {
        for request in [request::RESET_DEVICE, request::RESET_OWNER, request::SET_OWNER] {
            guest.link.tell(request, &[], &[])?;
        }
        guest.link.tell_u64(request::SET_FEATURES, Plan::default().features)?;
        for ring in 0..2 {
            guest.ring(ring).set_index(0);
            guest.serve(ring)?;
            guest.ring(ring).set_index(64);
            guest.kick(ring);
        }
        field.struck();
    }
}

fn rings_switched_on_and_off(field: &Field) -> Strike {
    let guest = field.plain()?;
    loop {
        for on in [0, 1] {
            for ring in 0..2 {
                guest.link.tell_ring(request::SET_VRING_ENABLE, ring, on)?;
                guest.kick(ring);
            }
        }
        field.struck();
    }
}

fn rings_stopped_and_started(field: &Field) -> Strike {
    let guest = field.plain()?;
    loop {
        for ring in 0..2 {
            guest.link.tell_ring(request::GET_VRING_BASE, ring, 0)?;
            guest.link.reply()?;
            let kick = guest.kicks[ring as usize].as_fd();
            guest.link.tell_fd(request::SET_VRING_KICK, ring, Some(kick))?;
            guest.kick(ring);
        }
        field.struck();
    }
}

fn a_thousand_announcements(field: &Field) -> Strike {
    let guest = field.plain()?;
    for number in 0..1000_u64 {
        guest.link.tell_u64(request::SEND_RARP, 0x0000_0002 | number << 24)?;
    }
    guest.link.ask(request::GET_FEATURES).map(drop)
}

fn mtus_that_are_none(field: &Field) -> Strike {
    for mtu in [0, 67, 65_536, u64::MAX] {
        let link = field.link()?;
        link.tell_u64(request::NET_SET_MTU, mtu)?;
        link.hung_up("an MTU that is none")?;
        field.struck();
    }
    Ok(())
}

fn in_flight_areas_that_lie(field: &Field) -> Strike {
    for (size, offset, queues, entries) in [
        (0, 0, 2_u16, 256_u16),
        (4096, 0, 2, 256),
        (1 << 46, 0, 2, 256),
        (4096, u64::MAX - 4095, 2, 256),
        (1 << 20, 4095, 65_535, 65_535),
        (1 << 20, 0, 0, 0),
    ] {
        let guest = Guest::negotiate(&field.evil(0), Plan::default())?;
        let mut body = [size, offset].map(u64::to_le_bytes).concat();
        body.extend([queues, entries].map(u16::to_le_bytes).concat());
        let file = crate::front::memory::memfd(1 << 20)?;
        let _ = guest.link.tell(request::GET_INFLIGHT_FD, &body, &[]);
        let _ = guest.link.tell(request::SET_INFLIGHT_FD, &body, &[file.as_fd()]);
        let _ = guest.share();
        for ring in 0..2 {
            let _ = guest.serve(ring);
            guest.kick(ring);
        }
        let _ = guest.link.ask(request::GET_FEATURES);
        field.struck();
    }
    Ok(())
}

fn requests_that_are_not_offered(field: &Field) -> Strike {
    for (request, body) in [
        (request::GET_CONFIG, vec![0; 12 + 256]),
        (request::IOTLB_MSG, vec![0xff; 32]),
        (request::VRING_KICK, ring_state(1, 0).to_vec()),
    ] {
        let guest = field.plain()?;
        guest.link.tell(request, &body, &[])?;
        guest.link.hung_up("a request that was not offered")?;
        field.struck();
    }
    // These requests are permitted, and harmless.
    let link = field.link()?;
    for request in [request::GET_QUEUE_NUM, request::GET_MAX_MEM_SLOTS, request::GET_STATUS] {
        link.ask(request)?;
    }
    Ok(())
}

fn two_front_ends_at_one_socket(field: &Field) -> Strike {
    let first = field.plain()?;
    for _ in 0..8 {
        drop(field.link()?);
        field.struck();
    }
    first.link.still_served("others who connected")
}

fn half_a_handshake(field: &Field) -> Strike {
    for messages in 0..5 {
        let guest = Guest::negotiate(&field.evil(messages as usize), Plan::default())?;
        if messages > 0 {
            guest.share()?;
        }
        if messages > 1 {
            guest.serve(0)?;
        }
        if messages > 2 {
            guest.serve(1)?;
        }
        if messages > 3 {
            guest.kick(1);
        }
        field.struck();
    }
    Ok(())
}

fn messages_by_chance(field: &Field) -> Strike {
    let mut random = Random::new();
    let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let file = crate::front::memory::memfd(1 << 20)?;
    let guest = Guest::negotiate(&field.evil(random.below(20) as usize), Plan::default())?;
    for _ in 0..60 {
        let number = random.below(44) as u32;
        let ring = random.below(18) as u32;
        let body = match random.below(6) {
            0 => vec![],
            1 => random.next().to_le_bytes().to_vec(),
            2 => ring_state(ring, random.next() as u32 & 0x1ff).to_vec(),
            3 => table(&[region(0, 1 << 20, 1 << 40, 0)]),
            4 => one_region(&region(random.next(), random.next(), random.next(), random.next())),
            _ => Guest::addresses(ring, Guest::places(ring)),
        };
        let fds = [event.as_fd(), file.as_fd()];
        let fds = &fds[random.below(3) as usize..];
        let flags = if random.below(4) == 0 { VERSION | NEED_REPLY } else { VERSION };
        if guest.link.flagged(number, flags, &body, fds).is_err() {
            break;
        }
        guest.kick(0);
    }
    Ok(())
}
