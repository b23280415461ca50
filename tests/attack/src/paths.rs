//! `mode = "client"`: weir connects to a path in a directory that belongs to a tenant. Interfaces on demand: sockets in
//! such a directory make interfaces.

use std::{
    fs,
    os::unix::{fs::symlink, net::UnixListener},
    path::PathBuf,
    time::{Duration, Instant},
};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::{
    attack,
    attack::{Attack, Field},
    front::{
        Strike, harm,
        link::{Link, readable, request},
    },
    measure::switch::{CALLER, CALLS, DEMAND, DEMANDED, EVILS},
};

/// The attacks of the class.
pub const ALL: &[Attack] = &[
    attack!(
        a_symlink_to_another_interface,
        "leads weir by a symlink to a socket of its own, whose guest is then turned away",
        as_another_user
    ),
    attack!(
        a_directory_that_is_a_symlink,
        "does it by the directory, in which a socket of weir's own has the same name",
        as_another_user
    ),
    attack!(
        a_symlink_to_a_socket_elsewhere,
        "leads weir to a socket outside the tenant's directory",
        as_another_user
    ),
    attack!(a_fifo_in_a_sockets_place, "puts a FIFO into the socket's place", as_another_user),
    attack!(
        a_listener_that_accepts_nobody,
        "listens with a queue that is full, so that connecting waits",
        as_another_user
    ),
    attack!(
        a_listener_that_says_nothing,
        "accepts, says nothing, and hangs up, without pause",
        as_another_user
    ),
    attack!(
        paths_swapped_without_pause,
        "swaps a socket, a symlink and a directory while weir connects",
        as_another_user
    ),
    attack!(symlinks_in_a_circle, "puts symlinks that lead to each other", as_another_user),
    attack!(
        a_file_in_a_sockets_place,
        "puts a file, a directory and a device's name into the socket's place",
        as_another_user
    ),
    attack!(
        sockets_on_demand_that_never_answer,
        "fills a directory with listeners that say nothing, many more than the pattern's interfaces",
        as_another_user
    ),
    attack!(
        names_on_demand_that_come_and_go,
        "makes and removes sockets, files, FIFOs and symlinks of ever new names without pause",
        as_another_user
    ),
    attack!(
        a_symlink_on_demand,
        "has an interface made for a symlink to a socket of weir's own",
        as_another_user
    ),
];

/// Longer than weir's interval between two attempts to connect.
const WHILE: Duration = Duration::from_millis(1500);

fn place(field: &Field) -> PathBuf {
    field.dir().join(CALLS).join(CALLER)
}

/// Removes all traces of attacks: the directory is a directory again.
fn clear(field: &Field) -> Strike<PathBuf> {
    let path = place(field);
    let within = path.parent().ok_or(rustix::io::Errno::INVAL)?;
    if fs::symlink_metadata(within).is_ok_and(|it| it.is_symlink()) {
        fs::remove_file(within)?;
    }
    let _ = fs::rename(within.with_extension("aside"), within);
    fs::create_dir_all(within)?;
    if fs::symlink_metadata(&path).is_ok_and(|it| it.is_dir()) {
        fs::remove_dir(&path)?;
    }
    let _ = fs::remove_file(&path);
    Ok(path)
}

/// No other client is connected as the front end at `socket`: for a while, new connections are served.
fn nobody_else_at(field: &Field, socket: &std::path::Path) -> Strike {
    let end = Instant::now() + WHILE;
    while Instant::now() < end {
        let link = Link::connect(socket)?;
        if link.ask(request::GET_FEATURES).is_err() {
            // weir limits a socket to ten front ends a second. Try once more, later.
            std::thread::sleep(Duration::from_millis(300));
            let link = Link::connect(socket)?;
            if link.ask(request::GET_FEATURES).is_err() {
                return harm("weir is connected to its own socket, and a front end is turned away");
            }
        }
        drop(link);
        std::thread::sleep(Duration::from_millis(150));
    }
    field.struck();
    Ok(())
}

/// The interface with the same socket name as [`CALLER`].
fn namesake(field: &Field) -> PathBuf {
    field.socket(&format!("evil{}", EVILS - 1))
}

fn a_symlink_to_another_interface(field: &Field) -> Strike {
    let path = clear(field)?;
    symlink(namesake(field), &path)?;
    nobody_else_at(field, &namesake(field))?;
    clear(field).map(drop)
}

fn a_directory_that_is_a_symlink(field: &Field) -> Strike {
    let path = clear(field)?;
    let within = path.parent().ok_or(rustix::io::Errno::INVAL)?;
    // The other directory contains weir's own sockets.
    fs::rename(within, within.with_extension("aside"))?;
    symlink(field.dir(), within)?;
    nobody_else_at(field, &namesake(field))?;
    clear(field).map(drop)
}

fn a_symlink_to_a_socket_elsewhere(field: &Field) -> Strike {
    let path = clear(field)?;
    // This directory stands for one that the tenant could not reach.
    let elsewhere = std::env::temp_dir().join(format!("weir-attack-{}", std::process::id()));
    let _ = fs::remove_file(&elsewhere);
    let listener = UnixListener::bind(&elsewhere)?;
    symlink(&elsewhere, &path)?;
    let came = readable(std::os::fd::AsFd::as_fd(&listener), WHILE);
    let _ = fs::remove_file(&elsewhere);
    clear(field)?;
    field.struck();
    if came? { harm("weir follows a symlink out of a tenant's directory") } else { Ok(()) }
}

fn a_fifo_in_a_sockets_place(field: &Field) -> Strike {
    let path = clear(field)?;
    mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o666), 0)?;
    field.struck();
    std::thread::sleep(WHILE);
    clear(field).map(drop)
}

fn a_listener_that_accepts_nobody(field: &Field) -> Strike {
    let path = clear(field)?;
    let listener = UnixListener::bind(&path)?;
    rustix::net::listen(&listener, 0)?;
    // This connection takes the only place in the queue.
    let _first = Link::connect(&path)?;
    field.struck();
    std::thread::sleep(WHILE);
    clear(field).map(drop)
}

fn a_listener_that_says_nothing(field: &Field) -> Strike {
    let path = clear(field)?;
    let listener = UnixListener::bind(&path)?;
    loop {
        let (weir, _) = listener.accept()?;
        field.struck();
        drop(weir);
    }
}

fn paths_swapped_without_pause(field: &Field) -> Strike {
    let path = clear(field)?;
    let within = path.parent().ok_or(rustix::io::Errno::INVAL)?.to_owned();
    let end = Instant::now() + WHILE;
    while Instant::now() < end {
        let listener = UnixListener::bind(&path)?;
        std::thread::sleep(Duration::from_micros(200));
        let _ = fs::remove_file(&path);
        symlink(namesake(field), &path)?;
        std::thread::sleep(Duration::from_micros(200));
        let _ = fs::remove_file(&path);
        drop(listener);
        let aside = within.with_extension("aside");
        fs::rename(&within, &aside)?;
        symlink(field.dir(), &within)?;
        std::thread::sleep(Duration::from_micros(200));
        fs::remove_file(&within)?;
        fs::rename(&aside, &within)?;
    }
    // A connection to a wrong socket would still exist now.
    nobody_else_at(field, &namesake(field))?;
    clear(field).map(drop)
}

fn symlinks_in_a_circle(field: &Field) -> Strike {
    let path = clear(field)?;
    let other = path.with_extension("other");
    let _ = fs::remove_file(&other);
    symlink(&other, &path)?;
    symlink(&path, &other)?;
    field.struck();
    std::thread::sleep(WHILE);
    let _ = fs::remove_file(&other);
    clear(field).map(drop)
}

fn a_file_in_a_sockets_place(field: &Field) -> Strike {
    fs::write(clear(field)?, [0; 4096])?;
    field.struck();
    std::thread::sleep(WHILE / 3);
    fs::create_dir(clear(field)?)?;
    std::thread::sleep(WHILE / 3);
    symlink("/dev/zero", clear(field)?)?;
    std::thread::sleep(WHILE / 3);
    clear(field).map(drop)
}

/// The directory of sockets on demand, without what another attack has left there.
fn demand(field: &Field) -> Strike<PathBuf> {
    let dir = field.dir().join(DEMAND);
    for entry in fs::read_dir(&dir)? {
        fs::remove_file(entry?.path())?;
    }
    Ok(dir)
}

fn sockets_on_demand_that_never_answer(field: &Field) -> Strike {
    let dir = demand(field)?;
    let listener = |number: usize| UnixListener::bind(dir.join(format!("demand-{number}.sock")));
    let all: Vec<_> = (0..6 * DEMANDED).map(listener).collect::<Result<_, _>>()?;
    field.struck();
    // Nobody is forgotten yet.
    std::thread::sleep(WHILE / 2);
    let met = |it: &UnixListener| readable(std::os::fd::AsFd::as_fd(it), Duration::ZERO);
    let met = all.iter().map(met).collect::<Result<Vec<_>, _>>()?;
    let number = met.iter().filter(|met| **met).count();
    std::thread::sleep(WHILE / 2);
    demand(field)?;
    match number <= DEMANDED {
        true => Ok(()),
        false => harm(format!("weir meets {number} sockets, and its pattern has {DEMANDED}")),
    }
}

fn names_on_demand_that_come_and_go(field: &Field) -> Strike {
    let dir = demand(field)?;
    let end = Instant::now() + WHILE;
    let mut number = 0_u64;
    while Instant::now() < end {
        let at = |name: &str| dir.join(format!("demand-{name}{number}.sock"));
        let listener = UnixListener::bind(at(""))?;
        fs::write(at("file"), "")?;
        fs::write(at("\u{1b}[31m\nevil "), "")?;
        symlink(namesake(field), at("link"))?;
        mknodat(CWD, at("fifo"), FileType::Fifo, Mode::from_raw_mode(0o666), 0)?;
        if number.is_multiple_of(64) {
            std::thread::sleep(Duration::from_millis(10));
            demand(field)?;
            field.struck();
        }
        drop(listener);
        number += 1;
    }
    demand(field).map(drop)
}

fn a_symlink_on_demand(field: &Field) -> Strike {
    let dir = demand(field)?;
    for number in 0..DEMANDED {
        symlink(namesake(field), dir.join(format!("demand-{number}.sock")))?;
    }
    nobody_else_at(field, &namesake(field))?;
    demand(field).map(drop)
}
