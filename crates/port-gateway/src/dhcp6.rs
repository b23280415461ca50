//! Answers for DHCPv6 clients that have addresses and ask for settings (RFC 8415 §6.1). weir gives no IPv6 addresses:
//! guests make them of the advertised prefixes.

use std::net::Ipv6Addr;

use dhcproto::v6::{DhcpOption, Message, MessageType};
use dhcproto::{Encodable, Name};
use weir_limits::RA_DNS_SECS;
use weir_wire::{Mac, Ports};

use crate::advert::RaSettings;

/// Ports of DHCPv6: a client's, and a server's (RFC 8415 §7.2).
pub(crate) const PORTS: Ports = Ports { src: 546, dst: 547 };
/// All relays and servers of a link (RFC 8415 §7.1).
pub(crate) const SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);

const INFORMATION_REQUEST: u8 = 11;
/// Options (RFC 8415 §21, RFC 3646).
const CLIENT: u16 = 1;
const SERVER: u16 = 2;
const WANTED: u16 = 6;
/// Options by which a client asks for addresses or prefixes. An Information-request has none (RFC 8415 §16.12).
const ADDRESSES: [u16; 3] = [3, 4, 25];
const DNS: u16 = 23;
const DOMAINS: u16 = 24;
const REFRESH: u16 = 32;
/// The longest identifier (RFC 8415 §11.1).
const DUID_LEN_MAX: usize = 130;

/// True if weir answers such a message, by the kind of the one in the datagram at `at` of a frame.
pub(crate) fn is_answered(head: &[u8], at: usize) -> bool {
    head.get(at + 8) == Some(&INFORMATION_REQUEST)
}

/// The answer to a client's message, if weir gives one.
pub(crate) fn reply(own: Mac, settings: &RaSettings, message: &[u8]) -> Option<Vec<u8>> {
    let (&[INFORMATION_REQUEST, a, b, c], mut rest) = message.split_first_chunk()? else {
        return None;
    };
    let server = identifier(own);
    let (mut client, mut wanted) = (None, None);
    while !rest.is_empty() {
        let (code, value);
        (code, value, rest) = option(rest)?;
        match code {
            CLIENT if value.len() > DUID_LEN_MAX => return None,
            CLIENT => client = Some(value),
            WANTED => wanted = Some(value),
            SERVER if value != server => return None,
            code if ADDRESSES.contains(&code) => return None,
            _ => {}
        }
    }
    // Each client has to say what it wants. One that does not is told everything.
    let wants = |code: u16| {
        wanted.is_none_or(|it| it.chunks_exact(2).any(|wanted| wanted == code.to_be_bytes()))
    };
    let mut reply = Message::new_with_id(MessageType::Reply, [a, b, c]);
    let options = reply.opts_mut();
    options.insert(DhcpOption::ServerId(server.into()));
    if let Some(client) = client {
        options.insert(DhcpOption::ClientId(client.into()));
    }
    if wants(DNS) && !settings.dns.is_empty() {
        options.insert(DhcpOption::DomainNameServers(settings.dns.clone()));
    }
    if wants(DOMAINS)
        && let Some(domain) = &settings.domain
    {
        let mut name = Name::from_ascii(domain).ok()?;
        name.set_fqdn(true);
        options.insert(DhcpOption::DomainSearchList(vec![name]));
    }
    if wants(REFRESH) {
        options.insert(DhcpOption::InformationRefreshTime(RA_DNS_SECS));
    }
    reply.to_vec().ok()
}

/// The first option, and what is behind it; `None` if it is not whole.
fn option(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let (&[a, b, c, d], rest) = bytes.split_first_chunk()?;
    let (value, rest) = rest.split_at_checked(u16::from_be_bytes([c, d]).into())?;
    Some((u16::from_be_bytes([a, b]), value, rest))
}

/// weir's identifier: a link-layer address of Ethernet (RFC 8415 §11.4).
fn identifier(Mac([a, b, c, d, e, f]): Mac) -> [u8; 10] {
    [0, 3, 0, 1, a, b, c, d, e, f]
}

#[cfg(test)]
mod tests {
    use dhcproto::v6::{IANA, ORO, OptionCode};
    use dhcproto::{Decodable, Decoder};
    use proptest::prelude::*;

    use super::*;

    const OWN: Mac = Mac([2, 0, 0, 0, 0, 0xfe]);
    const CLIENT_ID: [u8; 14] = [0, 1, 0, 1, 9, 8, 7, 6, 2, 0, 0, 0, 0, 1];

    fn settings() -> RaSettings {
        RaSettings {
            prefixes: vec!["fd77::/64".parse().unwrap()],
            dns: vec!["fd77::1".parse().unwrap()],
            domain: Some("lab.internal".into()),
            router_secs: 0,
        }
    }

    fn request(options: impl IntoIterator<Item = DhcpOption>) -> Vec<u8> {
        let mut message = Message::new_with_id(MessageType::InformationRequest, [7, 8, 9]);
        message.opts_mut().insert(DhcpOption::ClientId(CLIENT_ID.into()));
        for option in options {
            message.opts_mut().insert(option);
        }
        message.to_vec().unwrap()
    }

    fn wanted(codes: &[OptionCode]) -> DhcpOption {
        DhcpOption::ORO(ORO { opts: codes.to_vec() })
    }

    fn answer(message: &[u8]) -> Option<Message> {
        let bytes = reply(OWN, &settings(), message)?;
        Some(Message::decode(&mut Decoder::new(&bytes)).unwrap())
    }

    #[test]
    fn rfc_8415_18_3_6_a_client_gets_the_settings_that_it_asks_for() {
        let codes =
            [OptionCode::DomainNameServers, OptionCode::DomainSearchList, OptionCode::SntpServers];
        let got = answer(&request([wanted(&codes)])).unwrap();
        assert_eq!((got.msg_type(), got.xid()), (MessageType::Reply, [7, 8, 9]));
        let name = Name::from_ascii("lab.internal.").unwrap();
        let all = [
            DhcpOption::ClientId(CLIENT_ID.into()),
            DhcpOption::ServerId(identifier(OWN).into()),
            DhcpOption::DomainNameServers(settings().dns),
            DhcpOption::DomainSearchList(vec![name]),
        ];
        assert_eq!(got.opts().iter().cloned().collect::<Vec<_>>(), all);

        let got = answer(&request([wanted(&[OptionCode::DomainNameServers])])).unwrap();
        assert_eq!(got.opts().get(OptionCode::DomainSearchList), None);
        let got = answer(&request([])).unwrap();
        assert!(got.opts().get(OptionCode::DomainSearchList).is_some(), "it has not said");
        let refresh = [&[0, 32, 0, 4][..], &RA_DNS_SECS.to_be_bytes()].concat();
        let got = reply(OWN, &settings(), &request([])).unwrap();
        assert!(got.windows(refresh.len()).any(|it| it == refresh), "{got:x?}");
    }

    #[test]
    fn rfc_8415_16_12_requests_for_others_and_for_addresses_have_no_answer() {
        let mine = DhcpOption::ServerId(identifier(OWN).into());
        assert!(answer(&request([mine])).is_some());
        let anothers = DhcpOption::ServerId(identifier(Mac([9; 6])).into());
        assert_eq!(answer(&request([anothers])), None);
        let address = DhcpOption::IANA(IANA { id: 1, t1: 0, t2: 0, opts: Default::default() });
        assert_eq!(answer(&request([address])), None);
        let long = DhcpOption::ClientId(vec![7; DUID_LEN_MAX + 1]);
        assert_eq!(answer(&request([long])), None);
        let solicit = Message::new(MessageType::Solicit).to_vec().unwrap();
        assert_eq!(answer(&solicit), None);
        let whole = request([]);
        (5..whole.len()).for_each(|cut| assert_eq!(answer(&whole[..cut]), None, "{cut} bytes"));
    }

    proptest! {
        #[test]
        fn any_bytes_have_an_answer_that_can_be_read_or_none(
            mut message in prop::collection::vec(any::<u8>(), 0..200),
            is_request: bool,
        ) {
            if let (true, Some(first)) = (is_request, message.first_mut()) {
                *first = INFORMATION_REQUEST;
            }
            let _ = answer(&message);
        }
    }
}
