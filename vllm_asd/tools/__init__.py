"""What the commands do: calibrate, audit, bench, plan, explain, the demo. No serving process loads it."""
