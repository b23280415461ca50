//! weir's page in a browser, with traffic and drops: neither the console nor axe may report a fault.

use std::{fmt::Write as _, fs, path::Path, time::Duration};

use serde_json::json;
use weir_bed::{
    browser::{Browser, Screen},
    error::{Error, Result, check},
    lab::Lab,
    netns::Netns,
    packages,
    process::{Placement, Process, allow_descriptors, wait_until},
    report,
    workspace::{Programs, socket_path},
};

const ADDRESS: &str = "127.0.0.1:9101";
const TOKEN: &str = "a-token-of-a-test";
const PATIENCE: Duration = Duration::from_secs(20);

/// Ports of every kind, among them a guest whose datagrams are dropped.
const PORTS: &[(&str, &str)] = &[
    ("web0", "latency_budget = \"250us\"\n"),
    ("db0", ""),
    (
        "mail0",
        "vlan = 20\n[[vif.mail0.filter]]\ndirection = \"tx\"\nmatch = \"udp\"\naction = \"drop\"\n",
    ),
    ("mail1", "vlan = 20\n"),
    ("ids0", "mirror = [\"web0\"]\n"),
    ("a-guest-with-a-long-name", "trunk = [20, 30]\n"),
];

const LIGHT: Screen = Screen { width: 1280, height: 900, dark: false };
const TABLET: Screen = Screen { width: 768, height: 1024, dark: false };
const NARROW: Screen = Screen { width: 360, height: 740, dark: false };
const SCREENS: &[(&str, Screen)] = &[
    ("light", LIGHT),
    ("dark", Screen { dark: true, ..LIGHT }),
    ("tablet", TABLET),
    ("tablet-dark", Screen { dark: true, ..TABLET }),
    ("narrow", NARROW),
    ("narrow-dark", Screen { dark: true, ..NARROW }),
];

/// Further interfaces of a switch that is nearly full.
const CROWD: usize = 1_000;
/// Rows that the table shows at first.
const ROWS: usize = 50;
const CROWDED_SCREENS: &[(&str, Screen)] =
    &[("light", LIGHT), ("tablet-dark", Screen { dark: true, ..TABLET }), ("narrow", NARROW)];

pub(super) fn page_shows_the_switch_in_a_browser(lab: &Lab) -> Result<()> {
    packages::ensure_browser(&lab.workspace)?;
    let mut found = Found::default();
    visit(lab, "page", 0, &mut found, |visit| {
        visit.look_around()?;
        visit.use_keys()?;
        SCREENS.iter().try_for_each(|(name, screen)| visit.look_as(name, *screen))?;
        visit.fits_every_width()
    })?;
    visit(lab, "page-crowd", CROWD, &mut found, |visit| {
        visit.find_one_of_many()?;
        CROWDED_SCREENS.iter().try_for_each(|(name, screen)| visit.look_as(name, *screen))?;
        visit.fits_every_width()
    })?;
    found.judge(lab)
}

/// Visits the page of a switch with `crowd` further interfaces.
fn visit(
    lab: &Lab,
    dir: &str,
    crowd: usize,
    found: &mut Found,
    look: impl FnOnce(&mut Visit<'_>) -> Result<()>,
) -> Result<()> {
    let dir = lab.workspace.run_dir(dir)?;
    let netns = Netns::new()?;
    let _running = start(lab, &dir, &netns.placement(), crowd)?;
    let browser = Browser::start(&dir, &netns.placement())?;
    let mut visit = Visit { lab, dir: &dir, browser, found };
    visit.log_in()?;
    look(&mut visit)?;
    let complaints = visit.browser.complaints();
    visit.found.errors.extend(complaints);
    Ok(())
}

/// Starts weir, and guests that send each other datagrams.
fn start(lab: &Lab, dir: &Path, placement: &Placement, crowd: usize) -> Result<[Process; 3]> {
    // A few descriptors for each interface, and some for the rest.
    allow_descriptors(4 * crowd as u64 + 1024)?;
    let control = socket_path(dir, "control.sock")?;
    let token = dir.join("token");
    fs::write(&token, TOKEN).map_err(Error::io("write", &token))?;
    let mut config = format!(
        "[switch]\nworkers = 1\ncontrol = {control:?}\napi_listen = \"{ADDRESS}\"\napi_token_file = {token:?}\n\
         [uplink.lan]\nkind = \"tap\"\nname = \"weir0\"\n"
    );
    for (name, more) in PORTS {
        let socket = socket_path(dir, &format!("{name}.sock"))?;
        let _ = write!(config, "[vif.{name}]\nsocket = {socket:?}\n{more}");
    }
    for number in 0..crowd {
        let name = format!("tenant-{:02}-{number:03}", number / 50);
        let socket = socket_path(dir, &format!("{name}.sock"))?;
        let _ = write!(config, "[vif.{name}]\nsocket = {socket:?}\nvlan = {}\n", 100 + number / 50);
    }
    let file = dir.join("weir.toml");
    fs::write(&file, config).map_err(Error::io("write", &file))?;
    let weir = lab.weir.to_string_lossy();
    let argv = [&weir, "run", &file.to_string_lossy()];
    let switch = Process::start_logged(&argv, placement, &dir.join("weir.log"))?;
    wait_until("weir's control socket", PATIENCE, || Ok(control.exists()))?;

    let guests = Programs::beside(&lab.weir).example("guests");
    let send = |from: &str, to: &str, rate: &str| {
        let sockets = [from, to].map(|name| dir.join(format!("{name}.sock")));
        let [from, to] = sockets.each_ref().map(|socket| socket.to_string_lossy());
        let argv = [&guests.to_string_lossy(), "paced", &*from, &*to, rate, "200", "600"];
        Process::start_logged(&argv, placement, &dir.join("paced.log"))
    };
    Ok([send("web0", "db0", "5000")?, send("mail0", "mail1", "500")?, switch])
}

/// A visit of the page.
struct Visit<'l> {
    lab: &'l Lab,
    dir: &'l Path,
    browser: Browser,
    found: &'l mut Found,
}

/// The reported faults.
#[derive(Default)]
struct Found {
    errors: Vec<String>,
    findings: Vec<String>,
}

impl Visit<'_> {
    fn log_in(&mut self) -> Result<()> {
        self.browser.show_on(LIGHT)?;
        self.browser.open(&format!("http://{ADDRESS}/"))?;
        self.browser
            .wait("the question for a token", "!by('login').hidden && by('view').hidden")?;
        self.note("login")?;
        self.submit("another-token-than-weirs")?;
        self.browser.wait("a refusal", "by('refused').textContent.includes('not weir')")?;
        self.submit(TOKEN)?;
        self.browser.wait("the switch", "by('login').hidden && !by('view').hidden")?;
        // A browser logs each refused request, but may log the second one later.
        let refused = self.browser.complaints();
        check(!refused.is_empty() && refused.iter().all(|it| it.contains("401")), || {
            format!("{refused:?}")
        })
    }

    fn submit(&mut self, token: &str) -> Result<()> {
        let submit =
            format!("by('token').value = {}; by('login').requestSubmit(); 0", json!(token));
        self.browser.value_of(&submit)?;
        Ok(())
    }

    fn look_around(&mut self) -> Result<()> {
        let ports = PORTS.len() + 1;
        let tiles = format!("document.querySelectorAll('.tile').length === {ports}");
        self.browser.wait("every port drawn", &tiles)?;
        let networks =
            "[...document.querySelectorAll('.net h3 span')].map((it) => it.textContent).join()";
        let drawn = self.browser.value_of(networks)?;
        check(drawn == json!("Several networks,Mirrors,VLAN 1,VLAN 20"), || {
            format!("drawn: {drawn}")
        })?;
        self.browser.wait(
            "live rates",
            "page.ports.get('db0').rates.rx > 1000 && page.ports.get('web0').rates.tx > 1000",
        )?;
        let drops = "[...by('drops').children].some((row) => /filter/.test(row.textContent) && /mail0/.test(row.textContent) \
                     && row.querySelector('.bad'))";
        self.browser.wait("drops with their reason", drops)
    }

    /// With a thousand ports, the table lists a part, the drawing shows all, and the search finds each.
    fn find_one_of_many(&mut self) -> Result<()> {
        let ports = PORTS.len() + 1 + CROWD;
        let tiles = |number| format!("document.querySelectorAll('.tile').length === {number}");
        self.browser.wait("every port drawn", &tiles(ports))?;
        let listed = format!("by('rows').children.length === {ROWS} && !by('more').hidden");
        self.browser.wait("a part of the list", &listed)?;
        let window = "by('drawing').clientHeight < by('drawing').scrollHeight";
        self.browser.wait("a drawing that scrolls", window)?;
        let find = |text: &str| {
            format!("by('find').value = '{text}'; by('find').dispatchEvent(new Event('input')); 0")
        };
        self.browser.value_of(&find("tenant-19-999"))?;
        self.browser.wait("one of them", &tiles(1))?;
        self.browser.value_of(&find(""))?;
        self.browser.wait("all of them again", &tiles(ports))
    }

    /// Uses the page with keys only.
    fn use_keys(&mut self) -> Result<()> {
        self.browser.press("/")?;
        self.browser
            .wait("the focus where ports are found", "document.activeElement === by('find')")?;
        for letter in ["d", "b"] {
            self.browser.press(letter)?;
        }
        self.browser.wait("one port found", "document.querySelectorAll('.tile').length === 1")?;
        self.browser
            .value_of("by('find').value = ''; by('find').dispatchEvent(new Event('input')); 0")?;
        let focus = |name: &str| format!("document.activeElement.title === '{name}'");
        self.browser.value_of("page.tiles.get('db0').firstElementChild.focus(); 0")?;
        self.browser.press("ArrowRight")?;
        self.browser.wait("the focus on the next port", &focus("web0"))?;
        self.browser.press("ArrowLeft")?;
        self.browser.press("Enter")?;
        self.browser.wait(
            "the port opened",
            "by('port-title').textContent === 'db0' && !by('port').hidden",
        )?;
        self.browser.wait(
            "what was decided for it",
            "by('decisions').querySelectorAll('td').length >= 5",
        )?;
        self.browser.wait(
            "whom it reaches, as `weir explain` says",
            "/Can reach(\\d+|no) other ports? in .*Last heard/s.test(by('facts').textContent)",
        )?;
        self.browser
            .wait("lines over time", "by('charts').querySelectorAll('polyline').length === 4")?;
        self.browser.press("Escape")?;
        self.browser.wait("the port closed", &format!("by('port').hidden && {}", focus("db0")))?;
        self.browser.press("Enter")?;
        self.browser.wait("the port opened again", "!by('port').hidden")?;
        // The screenshots need lines in the charts.
        self.browser.wait("a few samples", "page.ports.get('db0').holds.length > 5")
    }

    fn look_as(&mut self, name: &str, screen: Screen) -> Result<()> {
        self.fits(name, screen)?;
        self.note(name)
    }

    /// Checks every width between those that people look at closely.
    fn fits_every_width(&mut self) -> Result<()> {
        (NARROW.width..=LIGHT.width)
            .step_by(40)
            .try_for_each(|width| self.fits(&format!("{width} pixels"), Screen { width, ..TABLET }))
    }

    fn fits(&mut self, name: &str, screen: Screen) -> Result<()> {
        self.browser.show_on(screen)?;
        self.browser.wait("the screen", &format!("innerWidth === {}", screen.width))?;
        let beyond = self.browser.value_of("document.documentElement.scrollWidth - innerWidth")?;
        check(beyond.as_i64().is_some_and(|it| it <= 0), || {
            format!("{name}: {beyond} pixels too wide")
        })?;
        // Tables may scroll, but on these screens they must fit.
        let cut = "[...document.querySelectorAll('.wide')].filter((it) => it.scrollWidth > it.clientWidth + 1)\
                   .map((it) => it.getAttribute('aria-label')).join()";
        let cut = self.browser.value_of(cut)?;
        check(cut == json!(""), || format!("{name}: cut off: {cut}"))
    }

    /// Takes a screenshot for people, and records the findings of axe.
    fn note(&mut self, name: &str) -> Result<()> {
        self.browser.picture(&self.dir.join(format!("{name}.png")))?;
        let found = self.browser.axe(&self.lab.workspace)?;
        self.found.findings.extend(found.into_iter().map(|it| format!("{name}: {it}")));
        self.found.errors.extend(self.browser.complaints());
        Ok(())
    }
}

impl Found {
    fn judge(self, lab: &Lab) -> Result<()> {
        let count = |of: &[String]| of.len() as f64;
        let figures = [
            ("web_console_errors", count(&self.errors)),
            ("web_axe_findings", count(&self.findings)),
        ];
        for (name, value) in figures {
            println!("figure {name} {value}");
        }
        report::merge(&lab.workspace, &figures)?;
        check(self.errors.is_empty(), || format!("the console: {}", self.errors.join("\n")))?;
        check(self.findings.is_empty(), || format!("axe: {}", self.findings.join("\n")))
    }
}
