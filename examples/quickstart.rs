//! Device memory that comes back by itself, on a simulated device: `cargo run --example quickstart`.
use aquifer::driver::{StreamId, sim::Sim};
use aquifer::{AllocError, Allocator};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Sim::builder().capacity(8 << 30).build()?.device(0).expect("there is one");
    let (main, side) = (StreamId(0), device.create_stream());
    let allocator = Allocator::new(device)?;
    let weights = allocator.allocate_typed::<f32>(10_000_000, main)?;
    let activations = allocator.allocate(300 << 20, main)?;
    activations.record_stream(side)?;
    drop(activations);
    println!("{} at {:#x}\n{}", weights.len(), weights.address(), allocator.memory_summary());
    match allocator.allocate(16 << 30, main) {
        Err(AllocError::OutOfMemory(report)) => println!("{report}"),
        other => println!("{other:?}"),
    }
    Ok(())
}
