//! One tenant with a hundred interfaces, and the resources that remain for others.

use std::os::fd::AsFd;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::{
    attack,
    attack::{Attack, Field},
    front::{
        Strike,
        guest::{Guest, Plan},
        link::{Link, region, request, table},
    },
    measure::switch::TENANTS,
};

/// The attacks of the class.
pub const ALL: &[Attack] = &[
    attack!(memory_by_a_hundred_interfaces, "shares as much memory as each of 100 interfaces may"),
    attack!(guests_by_a_hundred_interfaces, "attaches 100 guests, for descriptors and threads"),
    attack!(sessions_by_a_hundred_interfaces, "opens 100 sessions and says nothing"),
    attack!(
        sessions_of_a_hundred_interfaces_that_come_and_go,
        "opens and ends sessions of 100 interfaces without pause"
    ),
    attack!(
        second_connections_by_a_hundred_interfaces,
        "has two connections turned away for each of 100 sessions"
    ),
    attack!(
        memory_by_a_hundred_interfaces_that_comes_and_goes,
        "shares all memory that 100 interfaces may, and hangs up, again and again"
    ),
];

/// Default limit of the memory of one interface (bytes).
const MEMORY_MAX: u64 = 256 << 30;
/// Number of interfaces that share this much of the 24 TiB that all may share together. The others use up the rest by
/// halves.
const LARGE: usize = 95;

/// The size of the memory of interface `number` (bytes).
fn greed(number: usize) -> u64 {
    match number.checked_sub(LARGE) {
        None => MEMORY_MAX,
        Some(0) => MEMORY_MAX - (1 << 28),
        Some(rest) => 1 << 28_usize.saturating_sub(rest).max(20),
    }
}

/// Sessions on all interfaces.
fn sessions(field: &Field) -> Strike<Vec<Link>> {
    (0..TENANTS).map(|number| Link::connect(&field.tenant(number))).collect()
}

/// Each interface shares a sparse file of the largest permitted size.
fn greedy(field: &Field) -> Strike<Vec<Link>> {
    let file = memfd_create("all", MemfdFlags::CLOEXEC)?;
    ftruncate(&file, MEMORY_MAX)?;
    let links = sessions(field)?;
    for (number, link) in links.iter().enumerate() {
        let body = table(&[region(0, greed(number), 1 << 50, 0)]);
        // weir may refuse the last tables.
        let _ = link.tell(request::SET_MEM_TABLE, &body, &[file.as_fd()]);
    }
    for link in &links {
        let _ = link.ask(request::GET_FEATURES);
    }
    Ok(links)
}

fn memory_by_a_hundred_interfaces(field: &Field) -> Strike {
    let _links = greedy(field)?;
    field.struck();
    std::thread::sleep(std::time::Duration::from_millis(300));
    Ok(())
}

fn memory_by_a_hundred_interfaces_that_comes_and_goes(field: &Field) -> Strike {
    drop(greedy(field)?);
    Ok(())
}

fn guests_by_a_hundred_interfaces(field: &Field) -> Strike {
    let plan = Plan { memory: 4 << 20, size: 64, ..Plan::default() };
    let mut guests = Vec::new();
    for number in 0..TENANTS {
        match Guest::attach(&field.tenant(number), plan) {
            Ok(guest) => guests.push(guest),
            // weir refuses the guest to keep its reserve.
            Err(_) => break,
        }
    }
    field.struck();
    std::thread::sleep(std::time::Duration::from_millis(300));
    Ok(())
}

fn sessions_by_a_hundred_interfaces(field: &Field) -> Strike {
    let _links = sessions(field)?;
    field.struck();
    std::thread::sleep(std::time::Duration::from_millis(300));
    Ok(())
}

fn sessions_of_a_hundred_interfaces_that_come_and_go(field: &Field) -> Strike {
    for number in 0..TENANTS {
        drop(Link::connect(&field.tenant(number))?);
        field.struck();
    }
    Ok(())
}

fn second_connections_by_a_hundred_interfaces(field: &Field) -> Strike {
    let _first = sessions(field)?;
    field.struck();
    let _second = sessions(field)?;
    let _third = sessions(field)?;
    std::thread::sleep(std::time::Duration::from_millis(100));
    Ok(())
}
