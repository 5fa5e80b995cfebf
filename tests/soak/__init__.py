"""Random simulation: seven virtual days of hosts, time lines and faults out of a seed, under the monitors; a failing run is shrunk."""
