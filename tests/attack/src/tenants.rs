//! One tenant with a hundred interfaces, and the resources that remain for others.

use std::{
    fs::File,
    os::{fd::AsFd, unix::net::UnixStream},
    path::Path,
    time::{Duration, Instant},
};

use rustix::{
    event::{EventfdFlags, eventfd},
    fs::{MemfdFlags, ftruncate, memfd_create},
    io::Errno,
};

use crate::{
    attack,
    attack::{Attack, Field},
    front::{
        Strike,
        guest::{Guest, Plan},
        harm,
        link::{Link, VERSION, message, one_region, region, request, table},
    },
    measure::switch::TENANTS,
    settings::Own,
    slow_closes::Slow,
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

/// Attacks on the attacker's own weir, under limits of descriptors, and while one weir follows
/// another.
pub const SHARES: &[Attack] = &[
    attack!(
        all_descriptors_but_one_share_of_1024,
        "has the front ends of all interfaces but one hold whatever they can, below a limit of 1,024 descriptors"
    ),
    attack!(all_descriptors_but_one_share_of_65536, "the same below a limit of 65,536"),
    attack!(
        slow_in_a_backlog_across_an_upgrade,
        "leaves descriptors that close slowly in an interface's backlog while weir is upgraded"
    ),
    attack!(slow_in_a_backlog_across_a_sigkill, "the same while weir is killed, with a keeper"),
];

/// Default limit of the memory of one interface (bytes).
const MEMORY_MAX: u64 = 256 << 30;
/// Number of interfaces that each share `MEMORY_MAX` of the 24 TiB for all interfaces. Each further
/// interface shares half of the rest.
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
    std::thread::sleep(Duration::from_millis(300));
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
            // To keep its reserve, weir refuses the guest.
            Err(_) => break,
        }
    }
    field.struck();
    std::thread::sleep(Duration::from_millis(300));
    Ok(())
}

fn sessions_by_a_hundred_interfaces(field: &Field) -> Strike {
    let _links = sessions(field)?;
    field.struck();
    std::thread::sleep(Duration::from_millis(300));
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
    std::thread::sleep(Duration::from_millis(100));
    Ok(())
}

/// Longest wait of a front end whose interface has its share.
const NEWCOMER: Duration = Duration::from_secs(5);
const MEMORY: u64 = 1 << 20;

fn vifs(count: usize, queues: u64) -> String {
    (0..count).map(|number| format!("[vif.v{number}]\nqueues = {queues}\n")).collect()
}

/// The largest number of interfaces for which `weir check` reports nothing under the limit.
fn carried(field: &Field, limit: u64, switch: &str, queues: u64) -> Strike<usize> {
    let weir = field.weir().get_program().to_owned();
    let file = field.file("carried.toml");
    let (mut fits, mut over) = (1, 1001);
    while over - fits > 1 {
        let middle = usize::midpoint(fits, over);
        std::fs::write(&file, format!("{switch}{}", vifs(middle, queues)))?;
        let output =
            Own::command(Path::new(&weir), Some(limit)).arg("check").arg(&file).output()?;
        if !output.status.success() {
            return harm(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        match String::from_utf8_lossy(&output.stdout).contains("descriptors") {
            true => over = middle,
            false => fits = middle,
        }
    }
    std::fs::remove_file(&file)?;
    Ok(fits)
}

/// Makes weir hold a descriptor of each kind, as many as weir takes, and then half a message with
/// eight.
fn insatiable(path: &Path, queues: u64, regions: u64) -> Strike<Link> {
    let link = Link::connect(path)?;
    let call = eventfd(0, EventfdFlags::CLOEXEC)?;
    let memory = memfd_create("all", MemfdFlags::CLOEXEC)?;
    ftruncate(&memory, 64 * MEMORY)?;
    let (channel, _theirs) = UnixStream::pair()?;
    link.ask(request::GET_FEATURES)?;
    // Several queues, acknowledgements, a channel for requests, memory region by region.
    link.tell_u64(request::SET_PROTOCOL_FEATURES, 1 | 1 << 3 | 1 << 5 | 1 << 15)?;
    let held = || -> Strike {
        link.tell(request::SET_BACKEND_REQ_FD, &[], &[channel.as_fd()])?;
        for ring in 0..2 * u32::try_from(queues).map_err(|_| Errno::INVAL)? {
            link.tell_fd(request::SET_VRING_CALL, ring, Some(call.as_fd()))?;
            link.tell_fd(request::SET_VRING_ERR, ring, Some(call.as_fd()))?;
        }
        for number in 0..regions {
            let body = one_region(&region(number << 30, MEMORY, number << 30, number * MEMORY));
            link.tell(request::ADD_MEM_REG, &body, &[memory.as_fd()])?;
        }
        link.ask(request::GET_FEATURES)?;
        let null = File::open("/dev/null")?;
        let half = message(request::SET_MEM_TABLE, VERSION, &[0; 264]);
        link.raw(&half[..12], &[null.as_fd(); 8])
    };
    // weir may end a session that wants too much.
    let _ = held();
    Ok(link)
}

fn all_but_one_share(field: &Field, limit: u64, queues: u64) -> Strike {
    let mut count = 0;
    let own = Own::start_with(field, Some(limit), |switch| {
        count = carried(field, limit, switch, queues)?;
        Ok(vifs(count, queues))
    })?;
    field.counted("interfaces", count);
    let mut held = Vec::new();
    field.struck();
    let regions = if count > 100 { 16 } else { 64 };
    for number in 1..count {
        let path = own.socket(&format!("v{number}"));
        held.push(insatiable(&path, queues, regions)?);
        // A second connection waits to be turned away, with descriptors that close slowly.
        let slow = Slow::new()?;
        let second = Link::connect(&path)?;
        let _ = slow.send(&second, &[0]);
        held.push(second);
    }
    let began = Instant::now();
    let newcomer = Guest::attach(&own.socket("v0"), Plan::default());
    let took = began.elapsed();
    own.done("GET /v1/switch", "")?;
    field.struck();
    match newcomer {
        Ok(_) if took < NEWCOMER => Ok(()),
        Ok(_) => harm(format!("the last of {count} interfaces waited for {took:?}")),
        Err(error) => harm(format!("the last of {count} interfaces was refused: {error}")),
    }
}

fn all_descriptors_but_one_share_of_1024(field: &Field) -> Strike {
    all_but_one_share(field, 1024, 1)
}

fn all_descriptors_but_one_share_of_65536(field: &Field) -> Strike {
    all_but_one_share(field, 65_536, 8)
}

/// Front ends that wait in a backlog.
const WAITING: usize = 16;

fn backlog(field: &Field, next: fn(&mut Own) -> Strike) -> Strike {
    let tables = |_: &str| Ok("[vif.evil]\n\n[vif.other]\n".to_owned());
    let mut own = Own::start_with(field, None, tables)?;
    let first = Link::connect(&own.socket("evil"))?;
    first.ask(request::GET_FEATURES)?;
    let mut waiting = Vec::new();
    for _ in 0..WAITING {
        let slow = Slow::new()?;
        let link = Link::connect(&own.socket("evil"))?;
        let _ = slow.send(&link, &[0]);
        waiting.push(link);
    }
    let began = Instant::now();
    next(&mut own)?;
    let newcomer = Guest::attach(&own.socket("other"), Plan::default());
    own.done("GET /v1/switch", "")?;
    let took = began.elapsed();
    field.struck();
    if let Err(error) = newcomer {
        return harm(format!(
            "beside a backlog that closes slowly a front end is refused: {error}"
        ));
    }
    if took < NEWCOMER {
        Ok(())
    } else {
        harm(format!("a backlog kept the next weir for {took:?}"))
    }
}

fn slow_in_a_backlog_across_an_upgrade(field: &Field) -> Strike {
    backlog(field, Own::upgrade)
}

fn slow_in_a_backlog_across_a_sigkill(field: &Field) -> Strike {
    backlog(field, Own::kill)
}
