//! Names of guests (RFC 1035), and the guests' questions for the host's resolver.
//!
//! weir parses a guest's message and makes a new one from its question: no other bytes of the guest reach the resolver.

use std::net::IpAddr;

use hickory_proto::op::{Edns, Message, MessageType, OpCode, Query, ResponseCode};
use hickory_proto::rr::rdata::{A, AAAA, PTR};
use hickory_proto::rr::{DNSClass, Name, RData, Record, RecordType};
use ipnet::IpNet;
use weir_limits::{DNS_PAYLOAD_MAX, DNS_PAYLOAD_MIN, DNS_TTL_SECS};

#[cfg(test)]
mod tests;

/// The offsets of the flags, of the number of questions, and of the first question, which is never compressed.
const FLAGS: usize = 2;
const QUESTIONS: usize = 4;
const HEADER_LEN: usize = 12;
/// Bits of the flags (RFC 1035 §4.1.1).
const RESPONSE: u8 = 0x80;
const OPCODE: u8 = 0x78;
const TRUNCATED: u8 = 2;
/// The bytes of a question's type and class, which follow its name.
const TYPE_AND_CLASS: usize = 4;

/// The interfaces of the network, and their addresses.
pub(crate) trait Directory {
    /// The addresses of the interface of this name, if there is one. The case of letters does not count.
    fn addresses_of(&self, vif: &str) -> Option<Vec<IpAddr>>;
    /// The interface that has an address.
    fn vif_of(&self, address: IpAddr) -> Option<String>;
}

/// The result of a guest's message.
#[derive(Debug)]
pub(crate) enum Said {
    /// weir's answer.
    Answer(Vec<u8>),
    /// The resolver is asked.
    Ask(Asked),
    /// The message is no question.
    Nothing,
}

/// A question for the resolver.
#[derive(Debug)]
pub(crate) struct Asked {
    /// The whole message, with the guest's message number.
    bytes: Vec<u8>,
    /// The offset after the question.
    end: usize,
    /// The longest answer that the guest takes.
    limit: usize,
}

/// The names of one network.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    domain: Name,
    subnets: Vec<IpNet>,
    /// The resolver is asked for other names.
    asks: bool,
}

impl Names {
    /// The names in a domain, for stations of these subnets. With `asks`, a resolver is asked for other names. `None`
    /// if the domain is not valid.
    pub(crate) fn new(domain: &str, subnets: Vec<IpNet>, asks: bool) -> Option<Self> {
        let mut domain = Name::from_ascii(domain).ok()?;
        domain.set_fqdn(true);
        Some(Self { domain, subnets, asks })
    }

    /// Takes a guest's message from a datagram. With `room`, it comes from a connection that takes an answer of this
    /// length.
    pub(crate) fn take(
        &self,
        bytes: &[u8],
        room: Option<usize>,
        directory: &impl Directory,
    ) -> Said {
        let Ok(asked) = Message::from_vec(bytes) else { return Said::Nothing };
        if asked.metadata.message_type != MessageType::Query {
            return Said::Nothing;
        }
        let turn = Turn { names: self, asked: &asked, room };
        if asked.metadata.op_code != OpCode::Query {
            return turn.refuse(ResponseCode::NotImp);
        }
        if asked.edns.as_ref().is_some_and(|edns| edns.version() != 0) {
            return turn.refuse(ResponseCode::BADVERS);
        }
        let [query] = &asked.queries[..] else { return turn.refuse(ResponseCode::FormErr) };
        if query.query_class != DNSClass::IN {
            return turn.refuse(ResponseCode::Refused);
        }
        turn.of(query, directory)
    }

    /// The address of a name in the reverse tree, if the address is in this network.
    fn station(&self, name: &Name) -> Option<IpAddr> {
        let net =
            name.parse_arpa_name().ok().filter(|net| net.prefix_len() == net.max_prefix_len());
        let address = net?.addr();
        self.subnets.iter().any(|subnet| subnet.contains(&address)).then_some(address)
    }

    /// The part of a name before the domain. It is empty for the domain itself.
    fn within(&self, name: &Name) -> Option<String> {
        if !self.domain.zone_of(name) {
            return None;
        }
        let own = usize::from(name.num_labels()).checked_sub(self.domain.num_labels().into())?;
        let labels: Vec<_> = name.iter().take(own).map(String::from_utf8_lossy).collect();
        Some(labels.join("."))
    }
}

/// A question that is being answered.
struct Turn<'t> {
    names: &'t Names,
    asked: &'t Message,
    room: Option<usize>,
}

impl Turn<'_> {
    fn of(&self, query: &Query, directory: &impl Directory) -> Said {
        let (name, kind) = (&query.name, query.query_type);
        let known = |code: ResponseCode, data: Vec<RData>| {
            let record = |data| Record::from_rdata(name.clone(), DNS_TTL_SECS, data);
            self.answer(code, data.into_iter().map(record))
        };
        if let Some(address) = self.names.station(name) {
            let Some(vif) = directory.vif_of(address) else {
                return known(ResponseCode::NXDomain, Vec::new());
            };
            let pointed =
                Name::from_ascii(&vif).and_then(|vif| vif.append_domain(&self.names.domain));
            let told = pointed.ok().filter(|_| matches!(kind, RecordType::PTR | RecordType::ANY));
            return known(
                ResponseCode::NoError,
                told.map(|it| RData::PTR(PTR(it))).into_iter().collect(),
            );
        }
        let within = self.names.within(name);
        // A name without a domain can be a name in this one.
        let bare = (name.num_labels() == 1)
            .then(|| name.iter().next().map(String::from_utf8_lossy))
            .flatten();
        let addresses = match (&within, &bare) {
            (Some(vif), _) if vif.is_empty() => Some(Vec::new()),
            (Some(vif), _) => directory.addresses_of(vif),
            (None, Some(vif)) => directory.addresses_of(vif),
            (None, None) => None,
        };
        let data = |address: IpAddr| match address {
            IpAddr::V4(address) if matches!(kind, RecordType::A | RecordType::ANY) => {
                Some(RData::A(A(address)))
            }
            IpAddr::V6(address) if matches!(kind, RecordType::AAAA | RecordType::ANY) => {
                Some(RData::AAAA(AAAA(address)))
            }
            _ => None,
        };
        match addresses {
            Some(all) => known(ResponseCode::NoError, all.into_iter().filter_map(data).collect()),
            None if within.is_some() => known(ResponseCode::NXDomain, Vec::new()),
            None if self.names.asks && self.asked.metadata.recursion_desired => self.ask(query),
            None => self.refuse(ResponseCode::Refused),
        }
    }

    /// The longest answer that the guest takes (RFC 6891 §6.2.3).
    fn limit(&self) -> usize {
        if let Some(room) = self.room {
            return room;
        }
        let edns = self.asked.edns.as_ref();
        edns.map_or(DNS_PAYLOAD_MIN, |edns| edns.max_payload())
            .clamp(DNS_PAYLOAD_MIN, DNS_PAYLOAD_MAX)
            .into()
    }

    fn refuse(&self, code: ResponseCode) -> Said {
        self.answer(code, [])
    }

    fn answer(&self, code: ResponseCode, records: impl IntoIterator<Item = Record>) -> Said {
        let of = &self.asked.metadata;
        let mut answer = Message::response(of.id, of.op_code);
        answer.metadata.authoritative =
            matches!(code, ResponseCode::NoError | ResponseCode::NXDomain);
        answer.metadata.recursion_desired = of.recursion_desired;
        answer.metadata.recursion_available = self.names.asks;
        answer.metadata.response_code = code;
        answer.queries.extend(self.asked.queries.first().cloned());
        answer.add_answers(records);
        if self.asked.edns.is_some() {
            let mut edns = Edns::new();
            edns.set_max_payload(DNS_PAYLOAD_MAX).set_rcode_high(code.high());
            answer.edns = Some(edns);
        }
        let fits = |bytes: &Vec<u8>| bytes.len() <= self.limit();
        let whole = answer.to_vec().ok().filter(fits);
        let bytes = whole.or_else(|| answer.truncate().to_vec().ok().filter(fits));
        bytes.map_or(Said::Nothing, Said::Answer)
    }

    fn ask(&self, query: &Query) -> Said {
        let of = &self.asked.metadata;
        let mut question = Message::new(of.id, MessageType::Query, OpCode::Query);
        question.metadata.recursion_desired = true;
        question.metadata.checking_disabled = of.checking_disabled;
        question.metadata.authentic_data = of.authentic_data;
        question.queries.push(query.clone());
        let limit = self.limit();
        if let Some(of) = &self.asked.edns {
            let mut edns = Edns::new();
            let payload = limit.min(DNS_PAYLOAD_MAX.into()) as u16;
            edns.set_max_payload(payload).set_dnssec_ok(of.flags().dnssec_ok);
            question.edns = Some(edns);
        }
        let bytes = question.to_vec().ok();
        let asked =
            bytes.and_then(|bytes| Some(Asked { end: question_end(&bytes)?, bytes, limit }));
        asked.map_or(Said::Nothing, Said::Ask)
    }
}

/// True if an answer lacks records that a connection would carry.
pub(crate) fn is_cut(answer: &[u8]) -> bool {
    answer.get(FLAGS).is_some_and(|flags| flags & TRUNCATED != 0)
}

/// The offset after the question of a message.
fn question_end(bytes: &[u8]) -> Option<usize> {
    let mut at = HEADER_LEN;
    loop {
        let len = usize::from(*bytes.get(at)?);
        at += 1 + len;
        if len == 0 {
            let end = at + TYPE_AND_CLASS;
            return (end <= bytes.len()).then_some(end);
        }
    }
}

impl Asked {
    /// The message for the resolver, with another message number.
    pub(crate) fn numbered(&self, number: u16) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        bytes[..2].copy_from_slice(&number.to_be_bytes());
        bytes
    }

    /// The guest's answer, from the resolver's. `None` if the message is no answer, or answers another question. Only
    /// the header and the question are checked.
    pub(crate) fn answered(&self, number: u16, mut said: Vec<u8>) -> Option<Vec<u8>> {
        let (question, own) =
            (said.get(HEADER_LEN..self.end)?, self.bytes.get(HEADER_LEN..self.end)?);
        let (name, kind) = question.split_at(question.len() - TYPE_AND_CLASS);
        let (own_name, own_kind) = own.split_at(own.len() - TYPE_AND_CLASS);
        let is_answer = said[..2] == number.to_be_bytes()
            && said[FLAGS] & (RESPONSE | OPCODE) == RESPONSE
            && said[QUESTIONS..QUESTIONS + 2] == [0, 1]
            && name.eq_ignore_ascii_case(own_name)
            && kind == own_kind;
        if !is_answer {
            return None;
        }
        said[..2].copy_from_slice(&self.bytes[..2]);
        said[HEADER_LEN..self.end].copy_from_slice(own);
        if said.len() > self.limit {
            said[FLAGS] |= TRUNCATED;
            return Some(self.without_records(said));
        }
        Some(said)
    }

    /// The answer to a question that has failed.
    pub(crate) fn failed(&self) -> Vec<u8> {
        let mut said = self.bytes.clone();
        said[FLAGS] = (said[FLAGS] & 1) | RESPONSE;
        // Recursion is available, and it has failed.
        said[FLAGS + 1] =
            0x80 | u8::try_from(u16::from(ResponseCode::ServFail)).unwrap_or_default();
        self.without_records(said)
    }

    fn without_records(&self, mut message: Vec<u8>) -> Vec<u8> {
        message.truncate(self.end);
        message[QUESTIONS + 2..HEADER_LEN].fill(0);
        message
    }
}
