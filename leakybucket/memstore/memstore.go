package memstore
