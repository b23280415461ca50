//! The host's resolvers, as resolv.conf(5) names them.

use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect as connect_to, socket_with};
use weir_config::Networks;
use weir_limits::{RESOLV_CONF_BYTES_MAX, RESOLVERS_MAX};
use weir_port_gateway::Means;

/// The file is read for each socket, so a change needs no restart.
const FILE: &str = "/etc/resolv.conf";
const PORT: u16 = 53;

/// A non-blocking socket to the resolver whose turn it is, from a port that the kernel chooses. A
/// stream may still be connecting. The addresses in `own` are skipped, because weir would ask
/// itself.
///
/// # Errors
/// There is no resolver, or no way to it.
pub(crate) fn connect(turn: u32, means: Means, own: &[IpAddr]) -> io::Result<OwnedFd> {
    let mut text = Vec::new();
    File::open(FILE)?.take(RESOLV_CONF_BYTES_MAX).read_to_end(&mut text)?;
    let all = named_in(&String::from_utf8_lossy(&text), own);
    let Some(which) = (turn as usize).checked_rem(all.len()) else {
        return Err(io::Error::other(format!("{FILE} names no resolver but weir")));
    };
    let address = SocketAddr::new(all[which], PORT);
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let kind = match means {
        Means::Datagrams => SocketType::DGRAM,
        Means::Stream => SocketType::STREAM,
    };
    let socket = socket_with(family, kind, flags, None)?;
    match connect_to(&socket, &address) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

/// weir's own addresses in the networks for whose guests it asks the host's resolver; `None` if
/// there is no such network.
pub(crate) fn task(networks: &Networks) -> Option<Vec<IpAddr>> {
    let asks = networks.with_gateway().any(|(_, _, gateway)| gateway.asks_resolver());
    let own = networks.with_gateway().flat_map(|(_, _, gateway)| &gateway.addresses);
    asks.then(|| own.map(|own| own.get().addr()).collect())
}

/// The resolvers that a file names, except weir itself; the host if the file names no other.
fn named_in(text: &str, own: &[IpAddr]) -> Vec<IpAddr> {
    let named = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let is_it = words.next() == Some("nameserver");
        words.next().filter(|_| is_it)?.parse().ok()
    });
    let mut all: Vec<IpAddr> = named.take(RESOLVERS_MAX).collect();
    if all.is_empty() {
        all.push(Ipv4Addr::LOCALHOST.into());
    }
    all.retain(|address| !own.contains(&address.to_canonical()));
    all
}

#[cfg(test)]
mod tests {
    //! The resolvers in a resolv.conf(5).

    use super::*;

    fn ips(all: &[&str]) -> Vec<IpAddr> {
        all.iter().map(|ip| ip.parse().unwrap()).collect()
    }

    #[test]
    fn resolvers_are_those_of_the_file_but_for_weir_itself() {
        let text = "# nameserver 1.1.1.1\nsearch a b\n nameserver\t9.9.9.9 x\nnameserver 192.168.77.1\n\
                nameserver nonsense\nnameserver fd00::53\nnameserver 8.8.8.8\n";
        let own = ips(&["192.168.77.1"]);
        assert_eq!(named_in(text, &own), ips(&["9.9.9.9", "fd00::53"]));
        assert_eq!(named_in("nameserver ::ffff:192.168.77.1\n", &own), ips(&[]));
        assert_eq!(named_in("search a\n", &own), ips(&["127.0.0.1"]));
    }
}
