// probes
