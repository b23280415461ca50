//! Descriptors of an unexpected kind, of which the front end holds a copy.

use std::{
    fs::File,
    net::{TcpListener, TcpStream},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    time::Duration,
};

use rustix::{
    event::{EventfdFlags, epoll, eventfd},
    io::Errno,
    net::sockopt::set_socket_linger,
    pipe::{PipeFlags, pipe_with},
    process::{PidfdFlags, getpid, pidfd_open},
    time::{TimerfdClockId, TimerfdFlags, timerfd_create},
};

use crate::{
    attack,
    attack::{Attack, Field},
    front::{
        Strike,
        frame::{BROADCAST, EXPERIMENTAL, Header, frame},
        guest::{Guest, Plan},
        link::{NEED_REPLY, VERSION, request},
    },
    measure::switch::EVILS,
};

/// The attacks of the class.
pub const ALL: &[Attack] = &[
    attack!(
        call_eventfd_made_blocking_and_full,
        "has weir write to a counter that is full, after its file was made one that blocks"
    ),
    attack!(
        err_eventfd_made_blocking_and_full,
        "the same with the descriptor by which weir tells of a broken ring, and a broken ring"
    ),
    attack!(
        kick_eventfd_made_blocking_and_empty,
        "has weir read from a kick descriptor that is empty and blocks"
    ),
    attack!(call_pipe_that_is_full, "has weir call by a pipe that nobody reads"),
    attack!(call_socket_that_is_full, "has weir call by a socket that nobody reads"),
    attack!(call_pipe_without_a_reader, "has weir call by a pipe whose other end is closed"),
    attack!(
        call_eventfd_with_20_000_watchers,
        "makes each call of weir's wake 20,000 entries of epoll sets, so that it takes a millisecond"
    ),
    attack!(
        descriptors_that_close_slowly,
        "has weir close sockets that linger for seconds, with bytes that nobody takes"
    ),
    attack!(
        descriptors_of_every_other_kind,
        "kicks, calls, errors and memory by directories, devices, timers, epoll sets and processes"
    ),
    attack!(
        more_descriptors_than_a_message_takes,
        "sends 253 descriptors with a message that takes none"
    ),
    attack!(descriptors_on_every_message, "sends one descriptor with each request that takes none"),
    attack!(messages_without_their_descriptor, "leaves out the descriptors that requests need"),
    attack!(
        front_ends_with_all_their_queues,
        "attaches 20 front ends with eight queues each, for weir's last descriptor"
    ),
    attack!(
        a_connection_inside_itself,
        "sends both ends of sockets over themselves, so that only the kernel's collector finds them"
    ),
    attack!(
        calls_replaced_without_pause,
        "gives the same ring a new call descriptor again and again"
    ),
    attack!(
        kicks_replaced_without_pause,
        "gives the same ring a new kick descriptor again and again"
    ),
    attack!(
        a_call_that_is_a_kick,
        "gives one eventfd as kick and call of all its rings, so that weir kicks itself",
    own_share: "its own bursts and calls are charged to it by weight"),
    attack!(one_kick_for_sixteen_rings, "kicks all 16 rings by one eventfd"),
];

/// Makes the next write to `fd` block.
fn block(fd: &OwnedFd) -> Strike {
    let _ = rustix::io::read(fd, &mut [0; 8]);
    rustix::io::write(fd, &(u64::MAX - 1).to_ne_bytes())?;
    rustix::io::ioctl_fionbio(fd, false)?;
    Ok(())
}

/// Makes weir call the guest for sent and received frames, as often as possible.
fn provoke_calls(guest: &Guest, times: u32) -> Strike {
    for _ in 0..times {
        guest.send(1, Header::default(), &frame(BROADCAST, Guest::mac(0), EXPERIMENTAL, 60));
        guest.taken(1, "a frame")?;
        guest.repost(0);
    }
    Ok(())
}

fn call_eventfd_made_blocking_and_full(field: &Field) -> Strike {
    let guest = field.plain()?;
    guest.calls.iter().try_for_each(block)?;
    provoke_calls(&guest, 50)?;
    guest.link.tell_ring(request::GET_VRING_BASE, 1, 0)?;
    guest.link.reply()?;
    Ok(())
}

fn err_eventfd_made_blocking_and_full(field: &Field) -> Strike {
    let guest = field.plain()?;
    guest.errs.iter().try_for_each(block)?;
    guest.ring(1).set_index(30_000);
    guest.kick(1);
    std::thread::sleep(Duration::from_millis(5));
    guest.link.still_served("a broken ring whose error descriptor blocks")
}

fn kick_eventfd_made_blocking_and_empty(field: &Field) -> Strike {
    let guest = field.plain()?;
    for kick in &guest.kicks {
        let _ = rustix::io::read(kick, &mut [0; 8]);
        rustix::io::ioctl_fionbio(kick, false)?;
    }
    for _ in 0..100 {
        guest.kick(1);
        for kick in &guest.kicks {
            rustix::io::ioctl_fionbio(kick, true)?;
            let _ = rustix::io::read(kick, &mut [0; 8]);
            rustix::io::ioctl_fionbio(kick, false)?;
        }
    }
    guest.link.still_served("kicks that were taken back")
}

/// Makes weir call by `fd`, whose writes fail or block.
fn call_by(field: &Field, fd: BorrowedFd<'_>) -> Strike {
    let guest = field.plain()?;
    for ring in 0..guest.rings() {
        guest.link.tell_fd(request::SET_VRING_CALL, ring, Some(fd))?;
    }
    guest.link.ask(request::GET_FEATURES)?;
    provoke_calls(&guest, 50)?;
    guest.link.still_served("calls that nobody takes")
}

fn stuff(fd: &OwnedFd) -> Strike {
    rustix::io::ioctl_fionbio(fd, true)?;
    while rustix::io::write(fd, &[0; 4096]).is_ok() {}
    while rustix::io::write(fd, &[0]).is_ok() {}
    rustix::io::ioctl_fionbio(fd, false)?;
    Ok(())
}

fn call_pipe_that_is_full(field: &Field) -> Strike {
    let (_reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    stuff(&writer)?;
    call_by(field, writer.as_fd())
}

fn call_socket_that_is_full(field: &Field) -> Strike {
    let (_ours, theirs) = UnixStream::pair()?;
    let theirs = OwnedFd::from(theirs);
    stuff(&theirs)?;
    call_by(field, theirs.as_fd())
}

fn call_pipe_without_a_reader(field: &Field) -> Strike {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    let guest = field.plain()?;
    guest.link.tell_fd(request::SET_VRING_CALL, 1, Some(writer.as_fd()))?;
    guest.link.ask(request::GET_FEATURES)?;
    drop(reader);
    guest.send(1, Header::default(), &frame(BROADCAST, Guest::mac(0), EXPERIMENTAL, 60));
    std::thread::sleep(Duration::from_millis(2));
    guest.link.still_served("a call by a broken pipe")
}

fn call_eventfd_with_20_000_watchers(field: &Field) -> Strike {
    let guest = field.plain()?;
    let mut held = Vec::new();
    for call in &guest.calls {
        let copies = (0..200).map(|_| call.try_clone()).collect::<Result<Vec<_>, _>>()?;
        for _ in 0..100 {
            let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            for copy in &copies {
                epoll::add(&set, copy, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
            }
            held.push(set);
        }
        held.extend(copies);
    }
    field.struck();
    loop {
        // The attack continues until weir stops the port. Then a new guest starts.
        guest.send(1, Header::default(), &frame(BROADCAST, Guest::mac(0), EXPERIMENTAL, 60));
        guest.repost(0);
        for call in &guest.calls {
            let _ = rustix::io::read(call, &mut [0; 8]);
        }
        std::thread::sleep(Duration::from_micros(100));
        if crate::front::link::readable(guest.errs[1].as_fd(), Duration::ZERO)? {
            let _ = rustix::io::read(&guest.errs[1], &mut [0; 8]);
            guest.link.tell_u64(request::SET_STATUS, 0)?;
            for ring in 0..guest.rings() {
                guest.ring(ring).set_index(0);
                guest.serve(ring)?;
                guest.kick(ring);
            }
            guest.link.ask(request::GET_FEATURES)?;
        }
    }
}

/// A socket whose last close takes two seconds: it lingers, and its peer reads nothing.
fn lingering(listener: &TcpListener) -> Strike<(OwnedFd, TcpStream)> {
    let socket = TcpStream::connect(listener.local_addr()?)?;
    let (other, _) = listener.accept()?;
    set_socket_linger(&socket, Some(Duration::from_secs(2)))?;
    let socket = OwnedFd::from(socket);
    stuff(&socket)?;
    Ok((socket, other))
}

fn descriptors_that_close_slowly(field: &Field) -> Strike {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let link = field.link()?;
    let (slow, other) = lingering(&listener)?;
    link.tell_fd(request::SET_VRING_CALL, 0, Some(slow.as_fd()))?;
    // weir now has the last copy of the descriptor.
    drop(slow);
    field.struck();
    std::thread::sleep(Duration::from_secs(2));
    drop(other);
    link.hung_up("a call descriptor that is a TCP socket")
}

fn descriptors_of_every_other_kind(field: &Field) -> Strike {
    let file = field.file("plain");
    File::create(&file)?;
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    let (socket, _other) = UnixStream::pair()?;
    let kinds: Vec<OwnedFd> = vec![
        File::open("/")?.into(),
        File::open("/dev/null")?.into(),
        File::open("/dev/zero")?.into(),
        File::open("/proc/self/maps")?.into(),
        File::open("/proc/self/ns/net")?.into(),
        File::open(&file)?.into(),
        epoll::create(epoll::CreateFlags::CLOEXEC)?,
        timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?,
        pidfd_open(getpid(), PidfdFlags::empty())?,
        reader,
        writer,
        socket.into(),
    ];
    let _ = std::fs::remove_file(&file);
    let requests = [
        request::SET_VRING_KICK,
        request::SET_VRING_CALL,
        request::SET_VRING_ERR,
        request::SET_MEM_TABLE,
    ];
    for kind in &kinds {
        for request in requests {
            let Ok(link) = field.link() else { return Err(Errno::CONNREFUSED.into()) };
            let body = match request {
                request::SET_MEM_TABLE => {
                    crate::front::link::table(&[crate::front::link::region(0, 1 << 20, 1 << 40, 0)])
                }
                _ => 0_u64.to_le_bytes().to_vec(),
            };
            link.tell(request, &body, &[kind.as_fd()])?;
            let _ = link.ask(request::GET_FEATURES);
            field.struck();
        }
    }
    Ok(())
}

fn more_descriptors_than_a_message_takes(field: &Field) -> Strike {
    let link = field.link()?;
    let event = eventfd(0, EventfdFlags::CLOEXEC)?;
    let many = vec![event.as_fd(); 253];
    link.tell(request::GET_FEATURES, &[], &many)?;
    link.hung_up("253 descriptors")
}

fn descriptors_on_every_message(field: &Field) -> Strike {
    let event = eventfd(0, EventfdFlags::CLOEXEC)?;
    let takes_none = [
        (request::GET_FEATURES, 0),
        (request::SET_FEATURES, 8),
        (request::SET_OWNER, 0),
        (request::SET_VRING_NUM, 8),
        (request::SET_VRING_ADDR, 40),
        (request::GET_VRING_BASE, 8),
        (request::SET_VRING_ENABLE, 8),
        (request::REM_MEM_REG, 40),
    ];
    for (request, len) in takes_none {
        let link = field.link()?;
        link.tell(request, &vec![0; len], &[event.as_fd()])?;
        let _ = link.hung_up("it");
        field.struck();
    }
    Ok(())
}

fn messages_without_their_descriptor(field: &Field) -> Strike {
    let region = crate::front::link::region(0, 1 << 20, 1 << 40, 0);
    let bodies = [
        (request::SET_MEM_TABLE, crate::front::link::table(std::slice::from_ref(&region))),
        (request::ADD_MEM_REG, crate::front::link::one_region(&region)),
        (request::SET_VRING_KICK, vec![0; 8]),
        (request::SET_VRING_CALL, vec![0; 8]),
        (request::SET_LOG_FD, vec![]),
        (request::SET_BACKEND_REQ_FD, vec![]),
    ];
    for (request, body) in bodies {
        let link = field.link()?;
        link.flagged(request, VERSION | NEED_REPLY, &body, &[])?;
        link.hung_up("a request without its descriptor")?;
        field.struck();
    }
    Ok(())
}

fn front_ends_with_all_their_queues(field: &Field) -> Strike {
    let plan = Plan { pairs: 8, memory: 4 << 20, size: 64, ..Plan::default() };
    let mut guests = Vec::new();
    for number in 0..EVILS {
        guests.push(Guest::attach(&field.evil(number), plan)?);
    }
    field.struck();
    for guest in &guests {
        guest.link.ask(request::GET_FEATURES)?;
    }
    // All of them stay open until the end.
    std::thread::sleep(Duration::from_millis(200));
    Ok(())
}

fn a_connection_inside_itself(field: &Field) -> Strike {
    let link = field.link()?;
    let (a, b) = UnixStream::pair()?;
    link.tell(request::SET_VRING_CALL, &0_u64.to_le_bytes(), &[link.as_fd()])?;
    link.tell(request::SET_VRING_CALL, &1_u64.to_le_bytes(), &[a.as_fd()])?;
    // An incomplete message stays in the queue together with its descriptors.
    link.raw(&[0; 3], &[link.as_fd(), a.as_fd(), b.as_fd()])?;
    let _ = link.raw(&[0; 3], &[link.as_fd(), b.as_fd()]);
    Ok(())
}

fn calls_replaced_without_pause(field: &Field) -> Strike {
    let guest = field.plain()?;
    loop {
        for _ in 0..64 {
            let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            guest.link.tell_fd(request::SET_VRING_CALL, 1, Some(event.as_fd()))?;
            guest.kick(1);
        }
        field.struck();
    }
}

fn kicks_replaced_without_pause(field: &Field) -> Strike {
    let guest = field.plain()?;
    loop {
        for ring in [0, 1].repeat(16) {
            let event = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            guest.link.tell_fd(request::SET_VRING_KICK, ring, Some(event.as_fd()))?;
        }
        field.struck();
    }
}

fn a_call_that_is_a_kick(field: &Field) -> Strike {
    let plan = Plan { pairs: 8, size: 64, ..Plan::default() };
    let guest = Guest::attach(&field.evil(0), plan)?;
    let one = guest.kicks[0].as_fd();
    for ring in 0..guest.rings() {
        for request in [request::SET_VRING_KICK, request::SET_VRING_CALL] {
            guest.link.tell_fd(request, ring, Some(one))?;
        }
    }
    guest.link.ask(request::GET_FEATURES)?;
    let sent = frame(Guest::mac(9), Guest::mac(0), EXPERIMENTAL, 60);
    for ring in (1..guest.rings()).step_by(2) {
        guest.load(ring, |_| (Header::default(), sent.clone()));
    }
    field.struck();
    loop {
        for ring in (1..guest.rings()).step_by(2) {
            guest.pump(ring);
        }
    }
}

fn one_kick_for_sixteen_rings(field: &Field) -> Strike {
    let plan = Plan { pairs: 8, size: 64, ..Plan::default() };
    let guest = Guest::attach(&field.evil(0), plan)?;
    for ring in 0..guest.rings() {
        guest.link.tell_fd(request::SET_VRING_KICK, ring, Some(guest.kicks[0].as_fd()))?;
    }
    guest.link.ask(request::GET_FEATURES)?;
    loop {
        for _ in 0..64 {
            guest.kick(0);
        }
        field.struck();
        std::thread::sleep(Duration::from_micros(100));
    }
}
