//! Memory that is missing, not the front end's, too large, or truncated.

use std::{
    fs::File,
    io::Write,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create,
};

use crate::{
    attack,
    attack::{Attack, Field},
    front::{
        Miss, Strike,
        frame::{BROADCAST, EXPERIMENTAL, Header, frame},
        guest::{ACCESS_PLATFORM, BUFFERS, GUEST, Guest, Plan, USER},
        link::{Link, one_region, region, request, table},
        memory::memfd,
        ring::{RING_LEN, WRITE},
    },
};

/// The attacks of the class.
pub const ALL: &[Attack] = &[
    attack!(a_sparse_file_of_32_tib, "shares a file that fills the address space and has no page"),
    attack!(sparse_files_by_20_front_ends, "shares as much as is allowed, at 20 sockets at once"),
    attack!(frames_out_of_holes, "sends frames that lie in pages that nobody has touched",
        own_share: "what its frames cost is charged to it, pages included"),
    attack!(files_shorter_than_their_regions, "shares regions that are longer than their files"),
    attack!(regions_that_overlap, "shares regions over each other, in guest and in user addresses"),
    attack!(regions_that_wrap_around, "shares regions at the end of all addresses"),
    attack!(
        translations_that_cannot_be,
        "tells of translations that are empty, wrap around, or lie outside of memory"
    ),
    attack!(translations_without_number, "tells of ever more translations, over each other too"),
    attack!(translations_that_end_under_traffic, "ends all translations while its rings run"),
    attack!(rings_in_pieces_that_change, "has the pages of its rings at ever other places"),
    attack!(questions_that_nobody_answers, "never answers what weir asks, nor reads it"),
    attack!(regions_without_length, "shares regions of 0 bytes and of 1"),
    attack!(more_regions_than_there_are_slots, "adds regions until weir has no more"),
    attack!(one_region_again_and_again, "adds and removes one region without pause"),
    attack!(
        tables_without_pause,
        "replaces the memory table as fast as weir takes it, under traffic"
    ),
    attack!(
        buffers_over_many_regions,
        "adds 500 regions of a page each, and sends buffers that lie in 15 of them"
    ),
    attack!(
        one_file_at_many_addresses,
        "shares the same memory as 400 regions, to have it mapped that often"
    ),
    attack!(
        files_that_are_no_memory,
        "shares a disk file, a device, /proc and a directory as memory"
    ),
    attack!(files_that_may_not_be_written, "shares files that are read-only or sealed"),
    attack!(
        offsets_that_are_odd,
        "shares regions at offsets that are no page's, or beyond the file"
    ),
    attack!(memory_removed_while_rings_run, "removes the region that rings lie in while they run"),
    attack!(memory_cut_while_rings_run, "cuts the file to nothing while weir reads it"),
    attack!(
        memory_cut_and_grown_without_pause,
        "cuts and grows the file again and again under traffic"
    ),
    attack!(memory_punched_while_rings_run, "punches holes into the file while weir reads it"),
    attack!(
        a_hole_of_a_gigabyte,
        "punches a hole of 1 GiB while rings run: who touches it waits until it is made",
        outlasts
    ),
];

/// Adds a region that weir must refuse.
fn refused(field: &Field, region: &[u8], file: &OwnedFd, why: &str) -> Strike {
    let guest = Guest::negotiate(&field.evil(0), Plan::default())?;
    guest.link.tell(request::SET_MEM_TABLE, &table(&[region.to_vec()]), &[file.as_fd()])?;
    guest.link.hung_up(why)?;
    field.struck();
    Ok(())
}

fn a_sparse_file_of_32_tib(field: &Field) -> Strike {
    let file = memfd(1 << 45)?;
    refused(field, &region(0, 1 << 45, 1 << 50, 0), &file, "a region of 32 TiB")
}

fn sparse_files_by_20_front_ends(field: &Field) -> Strike {
    let file = memfd(1 << 38)?;
    let mut links = Vec::new();
    for number in 0..20 {
        let link = Link::connect(&field.evil(number))?;
        let body = table(&[region(0, 1 << 38, 1 << 50, 0)]);
        link.tell(request::SET_MEM_TABLE, &body, &[file.as_fd()])?;
        link.ask(request::GET_FEATURES)?;
        links.push(link);
    }
    Ok(())
}

fn frames_out_of_holes(field: &Field) -> Strike {
    // Each region is in its own page, 64 KiB apart, and no page is touched here.
    let guest = field.plain()?;
    let len = 1_u64 << 30;
    let holes = memfd(len)?;
    let body = one_region(&region(1 << 40, len, 1 << 45, 0));
    guest.link.tell(request::ADD_MEM_REG, &body, &[holes.as_fd()])?;
    guest.link.ask(request::GET_FEATURES)?;
    let ring = guest.ring(1);
    for turn in 0..64_u64 {
        for slot in 0..ring.size {
            let place = (turn * 256 + u64::from(slot)) * 65_536 % (len - 4096);
            ring.set(slot, (1 << 40) + place, 4096, 0, 0);
        }
        guest.pump(1);
        guest.taken(1, "frames out of holes")?;
    }
    Ok(())
}

fn files_shorter_than_their_regions(field: &Field) -> Strike {
    let file = memfd(4096)?;
    refused(field, &region(0, 1 << 20, 1 << 40, 0), &file, "a file that is too short")
}

fn regions_that_overlap(field: &Field) -> Strike {
    let file = memfd(1 << 20)?;
    for (guest, user) in [(4096, 1 << 41), (1 << 30, (1 << 40) + 4096)] {
        let link = field.link()?;
        let body = table(&[region(0, 1 << 20, 1 << 40, 0), region(guest, 1 << 20, user, 0)]);
        link.tell(request::SET_MEM_TABLE, &body, &[file.as_fd(), file.as_fd()])?;
        link.hung_up("regions over each other")?;
        field.struck();
    }
    Ok(())
}

fn regions_that_wrap_around(field: &Field) -> Strike {
    let file = memfd(1 << 20)?;
    let end = u64::MAX - 4095;
    for (guest, size, user) in [(end, 1 << 20, 0), (0, 1 << 20, end), (0, u64::MAX, 0), (0, end, 0)]
    {
        refused(field, &region(guest, size, user, 0), &file, "a region beyond all addresses")?;
    }
    Ok(())
}

fn regions_without_length(field: &Field) -> Strike {
    let file = memfd(1 << 20)?;
    refused(field, &region(0, 0, 1 << 40, 0), &file, "a region of no length")?;
    let guest = Guest::negotiate(&field.evil(0), Plan::default())?;
    let body = table(&[region(GUEST, 1, USER, 0)]);
    guest.link.tell(request::SET_MEM_TABLE, &body, &[file.as_fd()])?;
    let _ = guest.serve(1);
    let _ = guest.link.ask(request::GET_FEATURES);
    Ok(())
}

fn more_regions_than_there_are_slots(field: &Field) -> Strike {
    let guest = Guest::negotiate(&field.evil(0), Plan::default())?;
    let file = memfd(600 << 12)?;
    for slot in 0..600_u64 {
        let body = one_region(&region(slot << 21, 4096, (1 << 40) + (slot << 21), slot << 12));
        if guest.link.tell(request::ADD_MEM_REG, &body, &[file.as_fd()]).is_err() {
            break;
        }
    }
    guest.link.hung_up("600 regions")
}

fn one_region_again_and_again(field: &Field) -> Strike {
    let guest = field.plain()?;
    let file = memfd(1 << 20)?;
    let body = one_region(&region(1 << 40, 1 << 20, 1 << 45, 0));
    loop {
        for request in [request::ADD_MEM_REG, request::ADD_MEM_REG] {
            guest.link.tell(request, &body, &[file.as_fd()])?;
        }
        for request in [request::REM_MEM_REG, request::REM_MEM_REG] {
            guest.link.tell(request, &body, &[])?;
        }
        guest.kick(1);
        field.struck();
    }
}

fn tables_without_pause(field: &Field) -> Strike {
    let guest = field.plain()?;
    let sent = frame(Guest::mac(9), Guest::mac(0), EXPERIMENTAL, 60);
    guest.load(1, |_| (Header::default(), sent.clone()));
    loop {
        guest.share()?;
        guest.pump(1);
        field.struck();
    }
}

fn buffers_over_many_regions(field: &Field) -> Strike {
    let guest = field.plain()?;
    // Regions of one page at contiguous guest addresses.
    let file = memfd(500 * 4096)?;
    for page in 0..500_u64 {
        let at = 4096 * page;
        let body = one_region(&region((1 << 40) + at, 4096, (1 << 45) + at, at));
        guest.link.tell(request::ADD_MEM_REG, &body, &[file.as_fd()])?;
    }
    guest.link.ask(request::GET_FEATURES)?;
    let ring = guest.ring(1);
    for slot in 0..ring.size {
        ring.set(slot, 1 << 40, 60_000, 0, 0);
        ring.set_available(slot, slot);
    }
    guest.pump(1);
    guest.stopped("buffers over many regions")
}

fn one_file_at_many_addresses(field: &Field) -> Strike {
    let guest = field.plain()?;
    let file = memfd(1 << 29)?;
    for number in 0..400_u64 {
        let at = (1 << 46) + (number << 30);
        let body = one_region(&region(at, 1 << 29, at, 0));
        if guest.link.tell(request::ADD_MEM_REG, &body, &[file.as_fd()]).is_err() {
            break;
        }
    }
    guest.link.hung_up("the same memory 400 times")
}

fn files_that_are_no_memory(field: &Field) -> Strike {
    let path = field.file("disk");
    let mut disk =
        File::options().create(true).truncate(true).read(true).write(true).open(&path)?;
    disk.write_all(&[0; 8192])?;
    let _ = std::fs::remove_file(&path);
    for file in [File::open("/dev/zero")?, File::open("/proc/self/maps")?, File::open("/")?, disk] {
        let file = OwnedFd::from(file);
        refused(field, &region(0, 4096, 1 << 40, 0), &file, "a file that is no memory")?;
    }
    Ok(())
}

fn files_that_may_not_be_written(field: &Field) -> Strike {
    let file = memfd_create("sealed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, 1 << 20)?;
    fcntl_add_seals(&file, SealFlags::WRITE)?;
    refused(field, &region(0, 1 << 20, 1 << 40, 0), &file, "a sealed file")
}

fn offsets_that_are_odd(field: &Field) -> Strike {
    let file = memfd(1 << 20)?;
    for offset in [1 << 20, 1 << 40, u64::MAX - 4095, u64::MAX] {
        refused(field, &region(0, 1 << 20, 1 << 40, offset), &file, "an offset beyond the file")?;
    }
    let guest = Guest::negotiate(&field.evil(0), Plan::default())?;
    let body = table(&[region(GUEST, 4096, USER, 1)]);
    guest.link.tell(request::SET_MEM_TABLE, &body, &[file.as_fd()])?;
    let _ = guest.link.ask(request::GET_FEATURES);
    Ok(())
}

/// A guest that has just made a full ring available.
fn busy(field: &Field) -> Strike<Guest> {
    let guest = field.plain()?;
    let sent = frame(BROADCAST, Guest::mac(0), EXPERIMENTAL, 60);
    guest.load(1, |_| (Header::default(), sent.clone()));
    guest.pump(1);
    Ok(guest)
}

fn memory_removed_while_rings_run(field: &Field) -> Strike {
    let guest = busy(field)?;
    guest.link.tell(request::REM_MEM_REG, &one_region(&guest.region()), &[])?;
    let _ = guest.link.ask(request::GET_FEATURES);
    Ok(())
}

fn memory_cut_while_rings_run(field: &Field) -> Strike {
    let guest = busy(field)?;
    ftruncate(guest.memory.file(), 0)?;
    guest.kick(1);
    guest.stopped("memory that is gone")
}

fn memory_cut_and_grown_without_pause(field: &Field) -> Strike {
    let guest = busy(field)?;
    for _ in 0..50 {
        ftruncate(guest.memory.file(), BUFFERS as u64)?;
        guest.kick(1);
        ftruncate(guest.memory.file(), guest.memory.len() as u64)?;
        guest.kick(0);
        std::thread::sleep(Duration::from_micros(50));
    }
    Ok(())
}

fn memory_punched_while_rings_run(field: &Field) -> Strike {
    let guest = busy(field)?;
    for _ in 0..50 {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(guest.memory.file(), flags, 0, guest.memory.len() as u64)?;
        for slot in 0..256 {
            guest.ring(0).set(slot, guest.buffer_address(0, slot), 4096, WRITE, 0);
        }
        guest.kick(1);
        field.struck();
    }
    let end: Result<_, Miss> = guest.link.ask(request::GET_FEATURES);
    drop(end);
    Ok(())
}

fn a_hole_of_a_gigabyte(field: &Field) -> Strike {
    const FILE: u64 = 1 << 30;
    let guest = busy(field)?;
    let (file, stop) = (guest.memory.file(), AtomicBool::new(false));
    ftruncate(file, FILE)?;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                guest.pump(1);
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let punched = || -> Strike {
            fallocate(file, FallocateFlags::empty(), 0, FILE)?;
            field.struck();
            // The rings stay. Only the sent buffers are removed.
            Ok(fallocate(file, hole, BUFFERS as u64, FILE - BUFFERS as u64)?)
        };
        let done = (0..10).try_for_each(|_| punched());
        stop.store(true, Ordering::Relaxed);
        done
    })
}

/// A guest behind a virtual IOMMU whose rings run, and its end of the channel for questions.
fn behind(field: &Field) -> Strike<(Guest, UnixStream)> {
    behind_with(field, Plan::default())
}

fn behind_with(field: &Field, plan: Plan) -> Strike<(Guest, UnixStream)> {
    let plan = Plan { features: plan.features | ACCESS_PLATFORM, ..plan };
    let guest = Guest::negotiate(&field.evil(0), plan)?;
    let (ours, theirs) = UnixStream::pair()?;
    guest.link.tell(request::SET_BACKEND_REQ_FD, &[], &[theirs.as_fd()])?;
    guest.start()?;
    Ok((guest, ours))
}

fn translations_that_cannot_be(field: &Field) -> Strike {
    for (kind, iova, size, user, access) in [
        (2, GUEST, 0, USER, 3),
        (2, GUEST, 4096, USER, 0),
        (2, GUEST, 4096, USER, 4),
        (2, GUEST, 4096, USER - 1, 3),
        (2, GUEST, 1 << 40, USER, 3),
        (2, GUEST, u64::MAX, USER, 3),
        (2, u64::MAX, 4096, USER, 3),
        (2, GUEST, 4096, u64::MAX, 3),
        (3, GUEST, u64::MAX, 0, 0),
        (1, GUEST, 4096, USER, 3),
        (255, GUEST, 4096, USER, 3),
    ] {
        let (guest, _channel) = behind(field)?;
        guest.translate_all()?;
        let _ = guest.translate(kind, iova, size, user, access);
        guest.link.hung_up("a translation that cannot be")?;
        field.struck();
    }
    let guest = field.plain()?;
    let _ = guest.translate(2, GUEST, 4096, USER, 3);
    guest.link.hung_up("a translation without an IOMMU")
}

fn translations_without_number(field: &Field) -> Strike {
    let (guest, _channel) = behind(field)?;
    guest.translate_all()?;
    for (number, access) in (0..).zip([1, 2, 3].into_iter().cycle()) {
        // Far away, and then over each other.
        guest.translate(2, (1 << 48) + number * 8192, 4096, USER, 3)?;
        guest.translate(2, (1 << 47) + number % 7 * 4096, 8192, USER, access)?;
        guest.pump(1);
        field.struck();
    }
    Ok(())
}

fn translations_that_end_under_traffic(field: &Field) -> Strike {
    let (guest, _channel) = behind(field)?;
    loop {
        guest.translate_all()?;
        guest.load(1, |_| (Header::default(), frame(BROADCAST, Guest::mac(1), EXPERIMENTAL, 60)));
        guest.pump(1);
        guest.repost(0);
        guest.translate(3, 0, 0, 0, 0)?;
        field.struck();
    }
}

fn rings_in_pieces_that_change(field: &Field) -> Strike {
    let (guest, _channel) = behind_with(field, Plan { size: 1024, ..Plan::default() })?;
    let pages = 2 * RING_LEN as u64 / 4096;
    for round in 0_u64.. {
        guest.translate(2, GUEST, guest.memory.len() as u64, USER, 3)?;
        for page in 0..pages {
            let to = USER + (page ^ (round % 4)) * 4096;
            guest.translate(2, USER + page * 4096, 4096, to, 3)?;
        }
        guest.pump(1);
        if round % 3 > 0 {
            guest.translate(3, 0, 0, 0, 0)?;
        }
        field.struck();
    }
    Ok(())
}

fn questions_that_nobody_answers(field: &Field) -> Strike {
    let (guest, _channel) = behind(field)?;
    // The rings are known, and no buffer is.
    guest.translate(2, USER, guest.memory.len() as u64, USER, 3)?;
    loop {
        guest.pump(1);
        guest.kick(0);
        std::thread::sleep(Duration::from_micros(100));
        field.struck();
    }
}
