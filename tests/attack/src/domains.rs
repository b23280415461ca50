//! Attacks of users who may define libvirt's domains: `weir libvirt hook` reads their XML with root's rights.

use std::{
    io::Write,
    process::{Output, Stdio},
    sync::mpsc,
    time::Duration,
};

use crate::{
    attack,
    attack::{Attack, Field},
    control::{ask, open, request},
    front::{Strike, harm},
};

/// The attacks of the class.
pub const ALL: &[Attack] = &[
    attack!(entities_of_entities, "defines a domain whose entities grow a billionfold"),
    attack!(elements_without_end, "defines domains of 100,000 elements, in depth and in a row"),
    attack!(
        domains_with_others_interfaces,
        "names interfaces and sockets that are not the domain's"
    ),
    attack!(
        domains_whose_settings_are_lines,
        "puts lines, brackets and keys of weir's file into values"
    ),
    attack!(domains_with_a_thousand_interfaces, "asks for more interfaces than a domain may have"),
    attack!(domains_by_chance, "cuts and changes a good domain's bytes by chance"),
];

/// libvirt waits for this time. A hook that takes longer delays a domain that has done nothing.
const PATIENCE: Duration = Duration::from_secs(30);
const DOMAIN: &str = "mallory";

fn domain(vifs: &str, interfaces: &str) -> String {
    format!(
        "<domain type='kvm'><name>{DOMAIN}</name><uuid>00000000-0000-4000-8000-000000000666</uuid>\
         <memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>\
         <metadata><weir:vifs xmlns:weir='urn:weir:libvirt'>{vifs}</weir:vifs></metadata>\
         <devices>{interfaces}</devices></domain>"
    )
}

fn interface(socket: &str) -> String {
    format!(
        "<interface type='vhostuser'><source type='unix' path='{socket}' mode='client'/>\
         <model type='virtio'/></interface>"
    )
}

/// Runs the hook. The hook must neither end by a signal or a panic, nor keep libvirt waiting.
fn hook(field: &Field, operation: &str, xml: &[u8]) -> Strike<Output> {
    let mut command = field.weir();
    command.arg("--control").arg(field.control()).args(["libvirt", "hook", DOMAIN, operation]);
    command.args(["begin", "-"]).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn()?;
    let (mut input, xml) = (child.stdin.take(), xml.to_vec());
    std::thread::spawn(move || input.as_mut().map(|input| input.write_all(&xml)));
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || done.send(child.wait_with_output()));
    let Ok(output) = ended.recv_timeout(PATIENCE) else {
        return harm("a domain has libvirt wait for the hook");
    };
    let output = output?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    match output.status.code() {
        Some(0 | 1) if said.len() < 64 << 10 => Ok(output),
        _ => harm(format!("the hook ends with {}: {said:.300}", output.status)),
    }
}

/// The interfaces that weir has, each with its owner.
fn vifs(field: &Field) -> Strike<Vec<(String, String)>> {
    let (status, text) = ask(&open(field)?, &request("GET /v1/vifs", ""))?;
    let all: Vec<serde_json::Value> = serde_json::from_str(&text).unwrap_or_default();
    if status != 200 || all.is_empty() {
        return harm(format!("no interfaces: {status}"));
    }
    let text = |vif: &serde_json::Value, at: &str| {
        vif.pointer(at).map(ToString::to_string).unwrap_or_default()
    };
    Ok(all.iter().map(|vif| (text(vif, "/config/name"), text(vif, "/config/by"))).collect())
}

/// Makes each domain begin and end. weir's interfaces are then as before, and meanwhile nobody
/// else's is changed.
fn begin_and_end(field: &Field, domains: &[Vec<u8>], may_begin: bool) -> Strike {
    let before = vifs(field)?;
    for xml in domains {
        let begun = hook(field, "prepare", xml)?;
        if begun.status.success() && !may_begin {
            return harm(format!("a domain begins: {:.300}", String::from_utf8_lossy(xml)));
        }
        let now = vifs(field)?;
        if before.iter().any(|vif| !now.contains(vif)) {
            return harm(format!("a domain takes an interface: {before:?} became {now:?}"));
        }
        hook(field, "release", xml)?;
        field.struck();
    }
    // An interface that the attack has started belongs to another UUID, so the end of this domain leaves it.
    hook(field, "release", domain("", "").as_bytes())?;
    let after = vifs(field)?;
    if after == before { Ok(()) } else { harm(format!("{before:?} became {after:?}")) }
}

fn entities_of_entities(field: &Field) -> Strike {
    let mut text = String::from("<!DOCTYPE domain [<!ENTITY e0 'weir'>");
    for depth in 1..=9 {
        let ten = format!("&e{};", depth - 1).repeat(10);
        text += &format!("<!ENTITY e{depth} '{ten}'>");
    }
    let own = "<!ENTITY file SYSTEM 'file:///etc/passwd'>]>";
    let vif = "<weir:vif name='&e9;' vlan='&file;'/>";
    let socket = field.dir().join("mallory.sock");
    let whole = domain(vif, &interface(&socket.to_string_lossy()));
    begin_and_end(field, &[format!("{text}{own}{whole}").into_bytes()], false)
}

fn elements_without_end(field: &Field) -> Strike {
    let deep = domain(&"<a>".repeat(100_000), "");
    let closed = domain(&format!("{}{}", "<a>".repeat(50_000), "</a>".repeat(50_000)), "");
    let wide = domain(&"<weir:vif/>".repeat(100_000), "");
    let attributes: String = (0..100_000).map(|it| format!(" a{it}='1'")).collect();
    let many = domain(&format!("<weir:vif{attributes}/>"), "");
    let long = domain(&format!("<weir:vif name='{}'/>", "n".repeat(8 << 20)), "");
    let all = [deep, closed, wide, many, long].map(String::into_bytes);
    begin_and_end(field, &all, false)
}

fn domains_with_others_interfaces(field: &Field) -> Strike {
    let at = |name: &str| field.dir().join(name).to_string_lossy().into_owned();
    let named = |name: &str, socket: &str| {
        domain(&format!("<weir:vif name='{name}'/>"), &interface(&at(socket))).into_bytes()
    };
    let all = [
        named("a", "mallory.sock"),
        named("a", "a.sock"),
        named("mallory", "a.sock"),
        named("mallory", "control.sock"),
        named("mallory", "../../etc/passwd"),
        named("mallory", "weir.toml"),
        named("../a", "mallory.sock"),
        domain("", &interface(&at("a.sock"))).into_bytes(),
    ];
    // The last domain asks for nothing.
    begin_and_end(field, &all[..7], false)?;
    begin_and_end(field, &all[7..], true)
}

fn domains_whose_settings_are_lines(field: &Field) -> Strike {
    let socket = field.dir().join("mallory.sock").to_string_lossy().into_owned();
    let values = [
        "10&#10;[vif.a]&#10;vlan = 7",
        "10 # ",
        "10&#0;",
        "[10,20]&#13;mac_check=false",
        "&quot;10&quot;",
        "\u{202e}01",
        "10}, {",
    ];
    let keys = ["vlan", "rate", "trunk", "mirror", "by", "socket_mode", "groups", "filter"];
    let all: Vec<_> = values
        .iter()
        .flat_map(|value| keys.map(|key| format!("<weir:vif name='mallory' {key}='{value}'/>")))
        .map(|vif| domain(&vif, &interface(&socket)).into_bytes())
        .collect();
    begin_and_end(field, &all, false)
}

fn domains_with_a_thousand_interfaces(field: &Field) -> Strike {
    let at = |number: usize| field.dir().join(format!("mallory{number}.sock"));
    let interfaces: String =
        (0..1000).map(|number| interface(&at(number).to_string_lossy())).collect();
    let all = domain(&"<weir:vif/>".repeat(1000), &interfaces).into_bytes();
    begin_and_end(field, &[all], false)
}

fn domains_by_chance(field: &Field) -> Strike {
    let mut random = crate::random::Random::new();
    let socket = field.dir().join("mallory.sock").to_string_lossy().into_owned();
    let good = domain("<weir:vif vlan='10' rate='1Gbit'/>", &interface(&socket)).into_bytes();
    let all: Vec<_> = (0..16)
        .map(|_| {
            let mut bytes = good.clone();
            for _ in 0..=random.below(6) {
                let at = random.below(bytes.len() as u64) as usize;
                match random.below(3) {
                    0 => bytes[at] = random.next() as u8,
                    1 => bytes.truncate(at.max(1)),
                    _ => drop(bytes.splice(at..at, *b"</a><b c='")),
                }
            }
            bytes
        })
        .collect();
    begin_and_end(field, &all, true)
}
