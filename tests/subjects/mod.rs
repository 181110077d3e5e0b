//! Every driver there is: the simulated device, each wrapper and all of them stacked, with both backings
//! and three granularities.
use aquifer::driver::Driver;
use aquifer::driver::faulty::Faulty;
use aquifer::driver::limited::Limited;
use aquifer::driver::logged::Logged;
use aquifer::driver::sim::{Backing, Device, Sim};
use std::sync::Arc;

const GRANULARITIES: [u64; 3] = [64 << 10, 2 << 20, 16 << 20];
pub const UNITS: u64 = 64;

pub struct Subject {
    pub name: String,
    pub driver: Box<dyn Driver>,
    /// The device under the wrappers, to queue work on.
    pub device: Arc<Device>,
    pub unit: u64,
}

/// Runs `claim` on each driver there is.
pub fn each(claim: impl Fn(&Subject)) {
    for unit in GRANULARITIES {
        for backing in [Backing::AddressOnly, Backing::HostBytes] {
            for wrap in ["plain", "faulty", "limited", "logged", "all"] {
                let subject = subject(unit, backing, wrap);
                println!("{}", subject.name);
                claim(&subject);
            }
        }
    }
}

fn subject(unit: u64, backing: Backing, wrap: &str) -> Subject {
    let capacity = UNITS * unit;
    let builder = Sim::builder().capacity(capacity).granularity(unit).backing(backing);
    let device = builder.build().unwrap().device(0).unwrap();
    let inner = device.clone();
    let driver: Box<dyn Driver> = match wrap {
        "plain" => Box::new(inner),
        "faulty" => Box::new(Faulty::new(inner)),
        "limited" => Box::new(Limited::new(inner, capacity)),
        "logged" => Box::new(Logged::new(inner, 10)),
        _ => Box::new(Logged::new(Limited::new(Faulty::new(inner), capacity), 10)),
    };
    let name = format!("{wrap} over {backing:?} in units of {unit}");
    Subject { name, driver, device, unit }
}
